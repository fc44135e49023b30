#include "device/host/host_copier.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

namespace dormouse {
namespace {

constexpr std::size_t kSmallestShare = std::size_t{1} << 20;

void copy(std::byte* to, const std::byte* from, std::size_t size, std::uint32_t threads) {
  const std::size_t shares =
      std::clamp<std::size_t>(size / kSmallestShare, 1, std::size_t{threads});
  const std::size_t share = (size / shares + 4095) & ~std::size_t{4095};
  std::vector<std::jthread> helpers;
  for (std::size_t begin = share; begin < size; begin += share)
    helpers.emplace_back(
        [=] { std::memcpy(to + begin, from + begin, std::min(share, size - begin)); });
  std::memcpy(to, from, std::min(share, size));
}

}  // namespace

Status HostCopier::to_host(std::span<std::byte> host, const std::byte* device) {
  copy(host.data(), device, host.size(), threads_);
  return {};
}

Status HostCopier::to_device(std::byte* device, std::span<const std::byte> host) {
  copy(device, host.data(), host.size(), threads_);
  return {};
}

}  // namespace dormouse

#include "device/host/host_copier.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

namespace dormouse {
namespace {

constexpr std::size_t kSmallestShare = std::size_t{1} << 20;

// One call maps the pages of a fresh block, instead of a fault for each.
void prefault(std::byte* to, std::size_t size) {
  if (reinterpret_cast<std::uintptr_t>(to) % 4096 == 0)
    (void)::madvise(to, size, MADV_POPULATE_WRITE);
}

void copy_share(std::byte* to, const std::byte* from, std::size_t size) {
  prefault(to, size);
  std::memcpy(to, from, size);
}

void copy(std::byte* to, const std::byte* from, std::size_t size, std::uint32_t threads) {
  const std::size_t shares =
      std::clamp<std::size_t>(size / kSmallestShare, 1, std::size_t{threads});
  const std::size_t share = (size / shares + 4095) & ~std::size_t{4095};
  std::vector<std::jthread> helpers;
  for (std::size_t begin = share; begin < size; begin += share)
    helpers.emplace_back(
        [=] { copy_share(to + begin, from + begin, std::min(share, size - begin)); });
  copy_share(to, from, std::min(share, size));
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

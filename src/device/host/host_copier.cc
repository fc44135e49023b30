#include "device/host/host_copier.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

namespace dormouse {
namespace {

constexpr std::size_t kSmallestShare = std::size_t{1} << 20;

// A call maps the fresh pages of a stretch, instead of a fault for each; the stretch is small
// enough that its zeroed pages are still in the cache when they are written.
constexpr std::size_t kStretch = std::size_t{256} << 10;

void copy_share(std::byte* to, const std::byte* from, std::size_t size) {
  for (std::size_t at = 0; at < size; at += kStretch) {
    const std::size_t part = std::min(kStretch, size - at);
    if (reinterpret_cast<std::uintptr_t>(to + at) % 4096 == 0)
      (void)::madvise(to + at, part, MADV_POPULATE_WRITE);
    std::memcpy(to + at, from + at, part);
  }
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

#include "cli/bench_copy.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/unique_fd.h"
#include "device/host/host_copier.h"

namespace dormouse::cli {
namespace {

tl::unexpected<Error> failed(std::string_view call) {
  return fail(ErrorCode::kInternal, fmt::format("{}: {}", call, std::strerror(errno)));
}

bool write_all(int file, std::span<const std::byte> from, std::size_t offset) {
  while (!from.empty()) {
    const ssize_t written = ::pwrite(file, from.data(), from.size(), static_cast<off_t>(offset));
    if (written <= 0)
      return false;
    from = from.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::size_t>(written);
  }
  return true;
}

Status write_by_threads(int file, std::span<const std::byte> from, std::uint32_t threads) {
  const std::size_t share = (from.size() / threads + 4096) & ~std::size_t{4095};
  std::atomic<bool> good = true;
  std::vector<std::jthread> helpers;
  for (std::size_t begin = 0; begin < from.size(); begin += share)
    helpers.emplace_back([&, begin] {
      if (!write_all(file, from.subspan(begin, std::min(share, from.size() - begin)), begin))
        good = false;
    });
  helpers.clear();
  if (!good)
    return failed("pwrite");
  return {};
}

}  // namespace

Result<double> time_bare_copy(BareCopy kind, std::span<const std::byte> from,
                              std::uint32_t threads) {
  const auto start = std::chrono::steady_clock::now();
  const UniqueFd file(::memfd_create("dormouse-bare-copy", MFD_CLOEXEC));
  const auto size = static_cast<off_t>(from.size());
  if (!file || ::ftruncate(file.get(), size) != 0)
    return failed("memfd_create");
  if (kind == BareCopy::kAllocated && ::fallocate(file.get(), 0, 0, size) != 0)
    return failed("fallocate");
  void* to = nullptr;
  if (kind == BareCopy::kWritten) {
    DM_TRY(write_by_threads(file.get(), from, threads));
  } else {
    to = ::mmap(nullptr, from.size(), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (to == MAP_FAILED)
      return failed("mmap");
    DM_TRY(HostCopier(threads).to_device(static_cast<std::byte*>(to), from));
  }
  const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - start;
  if (to != nullptr)
    ::munmap(to, from.size());
  return passed.count();
}

}  // namespace dormouse::cli

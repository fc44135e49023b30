#include "memory/host_backup.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace dormouse {

Result<std::unique_ptr<HostBackup>> HostBackup::create(std::size_t size) {
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    return fail(
        ErrorCode::kResourceExhausted,
        fmt::format("no host memory for a backup of {} bytes: {}", size, std::strerror(errno)));
  ::madvise(data, size, MADV_HUGEPAGE);
  return std::unique_ptr<HostBackup>(new HostBackup(static_cast<std::byte*>(data), size));
}

HostBackup::~HostBackup() {
  ::munmap(data_, size_);
}

}  // namespace dormouse

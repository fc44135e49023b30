#include "testing/memory_file.h"

#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"

namespace dormouse::testing {

MemoryFile::MemoryFile(std::span<const std::byte> content)
    : fd_(::memfd_create("dormouse_test", MFD_CLOEXEC)) {
  DM_CHECK(fd_, "memfd_create failed");
  while (!content.empty()) {
    const ssize_t written = ::write(fd_.get(), content.data(), content.size());
    DM_CHECK(written > 0, "a write to memory failed");
    content = content.subspan(static_cast<std::size_t>(written));
  }
}

std::string MemoryFile::path() const {
  return fmt::format("/proc/self/fd/{}", fd_.get());
}

}  // namespace dormouse::testing

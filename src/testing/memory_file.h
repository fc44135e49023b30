// A file that is in memory only: as good as one on disk to whoever opens its path, and much faster.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace dormouse::testing {

class MemoryFile {
 public:
  explicit MemoryFile(std::span<const std::byte> content);
  explicit MemoryFile(std::string_view content) : MemoryFile(std::as_bytes(std::span(content))) {}

  // Within this process and for as long as this object lives.
  std::string path() const;

 private:
  UniqueFd fd_;
};

}  // namespace dormouse::testing

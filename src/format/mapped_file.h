// A whole file, mapped read-only.
//
// Owns:    the mapping and an open descriptor; movable, and the bytes keep their address.
// Threads: const methods from any thread.
// Errors:  kNotFound if the path cannot be opened, kDataLoss otherwise. Reading a page past the end
//          of a file that was cut short after `open` raises SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "dormouse/result.h"

namespace dormouse::format {

class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  // Fills `target` from `offset` on. kDataLoss if the file has become too short.
  Status read(std::uint64_t offset, std::span<std::byte> target) const;

  // kDataLoss if the file's size or time of change is not what it was at `open`.
  Status verify_unchanged() const;

 private:
  struct Stamp {
    std::uint64_t size = 0;
    std::int64_t seconds = 0;
    std::int64_t nanoseconds = 0;
    bool operator==(const Stamp&) const = default;
  };
  static Result<Stamp> stamp(int descriptor, const std::string& path);

  MappedFile() = default;

  std::string path_;
  UniqueFd descriptor_;
  Stamp stamp_;
  std::span<const std::byte> bytes_;
};

}  // namespace dormouse::format

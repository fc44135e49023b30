#include "format/mapped_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace dormouse::format {
namespace {

std::string reason() {
  return std::strerror(errno);
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  MappedFile file;
  file.path_ = path;
  file.descriptor_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.descriptor_)
    return fail(
        ErrorCode::kNotFound,
        fmt::format("cannot open {}: {}. Check the path and its permissions.", path, reason()));
  DM_TRY_ASSIGN(file.stamp_, stamp(file.descriptor_.get(), path));
  if (file.stamp_.size == 0)
    return file;
  void* address =
      ::mmap(nullptr, file.stamp_.size, PROT_READ, MAP_PRIVATE, file.descriptor_.get(), 0);
  if (address == MAP_FAILED)
    return fail(ErrorCode::kDataLoss, fmt::format("cannot map {}: {}.", path, reason()));
  file.bytes_ = {static_cast<const std::byte*>(address), file.stamp_.size};
  return file;
}

Result<MappedFile::Stamp> MappedFile::stamp(int descriptor, const std::string& path) {
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0)
    return fail(ErrorCode::kDataLoss, fmt::format("cannot examine {}: {}.", path, reason()));
  if (!S_ISREG(status.st_mode))
    return fail(ErrorCode::kDataLoss,
                fmt::format("{} is not a regular file. Give the path of a model file.", path));
  return Stamp{static_cast<std::uint64_t>(status.st_size), status.st_mtim.tv_sec,
               status.st_mtim.tv_nsec};
}

Status MappedFile::read(std::uint64_t offset, std::span<std::byte> target) const {
  while (!target.empty()) {
    const ssize_t got =
        ::pread(descriptor_.get(), target.data(), target.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0)
      return fail(
          ErrorCode::kDataLoss,
          fmt::format("{}: cannot read {} bytes at byte {}: {}", path_, target.size(), offset,
                      got < 0 ? reason() : "the file was cut short while it was read"));
    offset += static_cast<std::uint64_t>(got);
    target = target.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

Status MappedFile::verify_unchanged() const {
  Stamp now;
  DM_TRY_ASSIGN(now, stamp(descriptor_.get(), path_));
  if (now != stamp_)
    return fail(
        ErrorCode::kDataLoss,
        fmt::format("{} changed while it was in use ({} bytes when opened, {} now). Load the "
                    "model again once the file is complete.",
                    path_, stamp_.size, now.size));
  return {};
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::exchange(other.path_, {})),
      descriptor_(std::move(other.descriptor_)),
      stamp_(other.stamp_),
      bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(stamp_, other.stamp_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty())
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace dormouse::format

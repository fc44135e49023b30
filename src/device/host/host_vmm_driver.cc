#include "device/host/host_vmm_driver.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "device/host/block_census.h"
#include "device/host/host_memory.h"

namespace dormouse {
namespace {

constexpr std::size_t kGranularity = std::size_t{2} << 20;

tl::unexpected<Error> system_error(std::string_view call, std::size_t size) {
  const int number = errno;
  const auto code =
      number == ENOMEM || number == ENOSPC ? ErrorCode::kResourceExhausted : ErrorCode::kInternal;
  return fail(code, fmt::format("{} of {} bytes: {}", call, size, std::strerror(number)));
}

int protection(Access access) {
  switch (access) {
    case Access::kNone:
      return PROT_NONE;
    case Access::kRead:
      return PROT_READ;
    case Access::kReadWrite:
      return PROT_READ | PROT_WRITE;
  }
  return PROT_NONE;
}

// With these nobody can change the size any more, nor write by a mapping made from now on.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

bool sealed(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & kSeals) == kSeals;
}

constexpr int kReservation = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

}  // namespace

HostVmmDriver::HostVmmDriver(std::uint64_t capacity) : capacity_(capacity) {}

std::size_t HostVmmDriver::granularity() const {
  return kGranularity;
}

Result<std::byte*> HostVmmDriver::reserve(std::size_t size) {
  void* address = ::mmap(nullptr, size, PROT_NONE, kReservation, -1, 0);
  if (address == MAP_FAILED)
    return system_error("reserve", size);
  return static_cast<std::byte*>(address);
}

Status HostVmmDriver::free_reservation(std::byte* address, std::size_t size) {
  if (::munmap(address, size) != 0)
    return system_error("free_reservation", size);
  return {};
}

// A memfd has no size limit of its own: without this check the kernel would kill a process instead.
Status HostVmmDriver::check_room(std::size_t size) {
  if (capacity_ > 0) {
    const std::lock_guard lock(mutex_);
    if (created_bytes_ + size > capacity_)
      return fail(ErrorCode::kResourceExhausted,
                  fmt::format("a block of {} bytes does not fit: {} of {} bytes are in use", size,
                              created_bytes_, capacity_));
  }
  DM_TRY_ASSIGN(const std::uint64_t available, available_host_memory());
  if (size > available)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("a block of {} bytes does not fit: the host has {} bytes available",
                            size, available));
  return {};
}

Result<BlockHandle> HostVmmDriver::create(std::size_t size) {
  DM_CHECK(size > 0 && size % kGranularity == 0, "block size is not a multiple of the granularity");
  DM_TRY(check_room(size));
  UniqueFd fd(::memfd_create(kHostBlockName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::fallocate(fd.get(), 0, 0, static_cast<off_t>(size)) != 0)
    return system_error("create", size);
  return keep({std::move(fd), size, false});
}

BlockHandle HostVmmDriver::keep(Block block) {
  const std::lock_guard lock(mutex_);
  created_bytes_ += block.imported ? 0 : block.size;
  blocks_.emplace(++last_id_, std::move(block));
  return BlockHandle{last_id_};
}

Status HostVmmDriver::release(BlockHandle block) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(block.id);
  DM_CHECK(found != blocks_.end(), fmt::format("release of unknown block {}", block.id));
  created_bytes_ -= found->second.imported ? 0 : found->second.size;
  blocks_.erase(found);
  return {};
}

Result<HostVmmDriver::KnownBlock> HostVmmDriver::find(BlockHandle block) const {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(block.id);
  if (found == blocks_.end())
    return fail(ErrorCode::kNotFound, fmt::format("unknown block {}", block.id));
  return KnownBlock{found->second.fd.get(), found->second.size};
}

Result<std::size_t> HostVmmDriver::block_size(BlockHandle block) const {
  DM_TRY_ASSIGN(const KnownBlock known, find(block));
  return known.size;
}

Status HostVmmDriver::map(std::byte* address, std::size_t size, BlockHandle block) {
  DM_TRY_ASSIGN(const KnownBlock known, find(block));
  if (::mmap(address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, known.fd, 0) == MAP_FAILED)
    return system_error("map", size);
  return {};
}

Status HostVmmDriver::set_access(std::byte* address, std::size_t size, Access access) {
  if (::mprotect(address, size, protection(access)) != 0)
    return system_error("set_access", size);
  return {};
}

Status HostVmmDriver::unmap(std::byte* address, std::size_t size) {
  if (::mmap(address, size, PROT_NONE, kReservation | MAP_FIXED, -1, 0) == MAP_FAILED)
    return system_error("unmap", size);
  return {};
}

Result<UniqueFd> HostVmmDriver::export_block(BlockHandle block) {
  DM_TRY_ASSIGN(const KnownBlock known, find(block));
  const int fd = known.fd;
  if (!sealed(fd) && ::fcntl(fd, F_ADD_SEALS, kSeals) != 0)
    return system_error("export", 0);
  // A duplicate would share the right to write; only opening the file again gives it up.
  UniqueFd read_only(::open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_RDONLY | O_CLOEXEC));
  if (!read_only)
    return system_error("export", 0);
  return read_only;
}

Result<BlockHandle> HostVmmDriver::import_block(UniqueFd descriptor, std::size_t size) {
  struct stat found {};
  if (::fstat(descriptor.get(), &found) != 0)
    return system_error("import", size);
  const bool whole =
      size > 0 && size % kGranularity == 0 && static_cast<std::uint64_t>(found.st_size) == size;
  if (!whole || !sealed(descriptor.get()))
    return fail(ErrorCode::kDataLoss,
                fmt::format("the descriptor is no sealed block of {} bytes", size));
  return keep({std::move(descriptor), size, true});
}

Result<BytesHeldBy> HostVmmDriver::holding(std::span<const BlockHandle> blocks) const {
  BlockCensus census;
  for (const BlockHandle block : blocks) {
    DM_TRY_ASSIGN(const KnownBlock known, find(block));
    struct stat found {};
    if (::fstat(known.fd, &found) != 0)
      return system_error("census", 0);
    census.emplace(BlockIdentity{found.st_dev, found.st_ino}, known.size);
  }
  return [census = std::move(census)](pid_t process) { return bytes_held_by(process, census); };
}

Result<std::uint64_t> HostVmmDriver::device_bytes_in_use() const {
  return shared_memory_in_use();
}

}  // namespace dormouse

#include "kv_connector/offload/disk_block.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"
#include "base/unique_fd.h"

namespace dormouse {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

constexpr std::uint64_t kMagic = 0x4b42'564b'4d52'4f44;  // "DORMKVBK"
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kKeyBytes = 64;

struct Header {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t header_bytes = kBlockHeaderBytes;
  std::uint64_t rank = 0;
  std::uint64_t reserved = 0;
  std::uint64_t payload_bytes = 0;
  Hash128 checksum;
  char key[kKeyBytes] = {};
  bool operator==(const Header&) const = default;
};
static_assert(sizeof(Header) == kBlockHeaderBytes && std::is_trivially_copyable_v<Header>);

Header header_for(const BlockName& name, std::span<const std::byte> block) {
  DM_CHECK(name.key.size() == kKeyBytes, "a key is the hexadecimal form of a SHA-256");
  Header header{.rank = name.rank, .payload_bytes = block.size(), .checksum = hash128(block)};
  std::memcpy(header.key, name.key.data(), kKeyBytes);
  return header;
}

tl::unexpected<BlockFileError> broken(DiskFault kind, int error = 0) {
  return tl::unexpected(BlockFileError{kind, error});
}

tl::unexpected<BlockFileError> system_error() {
  const int error = errno;
  const bool full = error == ENOSPC || error == EDQUOT;
  const bool gone = error == ENOENT || error == ENOTDIR;
  return broken(full ? DiskFault::kNoSpace : gone ? DiskFault::kVanished : DiskFault::kIo, error);
}

BlockFileResult read_all(int fd, std::span<std::byte> to, std::size_t offset) {
  while (!to.empty()) {
    const ssize_t count = ::pread(fd, to.data(), to.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR)
      continue;
    if (count < 0)
      return system_error();
    if (count == 0)
      return broken(DiskFault::kTorn);
    to = to.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::size_t>(count);
  }
  return {};
}

BlockFileResult write_all(int fd, std::span<const std::byte> from) {
  while (!from.empty()) {
    const ssize_t count = ::write(fd, from.data(), from.size());
    if (count < 0 && errno == EINTR)
      continue;
    if (count < 0)
      return system_error();
    from = from.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

BlockFileResult write_and_publish(const std::string& file, const std::string& temporary,
                                  const BlockName& name, std::span<const std::byte> block) {
  const std::string folder = file.substr(0, file.rfind('/'));
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return system_error();
  const UniqueFd fd(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd)
    return system_error();
  const Header header = header_for(name, block);
  DM_TRY(write_all(fd.get(), std::as_bytes(std::span(&header, 1))));
  DM_TRY(write_all(fd.get(), block));
  if (::fdatasync(fd.get()) != 0 || ::rename(temporary.c_str(), file.c_str()) != 0)
    return system_error();
  return {};
}

}  // namespace

BlockFileResult read_block_file(const std::string& file, const BlockName& name,
                                std::span<std::byte> block) {
  // O_NONBLOCK: somebody may have put a pipe there.
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd)
    return errno == ELOOP ? broken(DiskFault::kForeign) : system_error();
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0)
    return system_error();
  if (!S_ISREG(status.st_mode))
    return broken(DiskFault::kForeign);
  if (static_cast<std::size_t>(status.st_size) < kBlockHeaderBytes)
    return broken(DiskFault::kTorn);
  Header found;
  DM_TRY(read_all(fd.get(), std::as_writable_bytes(std::span(&found, 1)), 0));
  const std::size_t payload = static_cast<std::size_t>(status.st_size) - kBlockHeaderBytes;
  if (payload < block.size() && payload < found.payload_bytes)
    return broken(DiskFault::kTorn);
  if (payload != block.size())
    return broken(DiskFault::kForeign);
  DM_TRY(read_all(fd.get(), block, kBlockHeaderBytes));
  Header expected = header_for(name, block);
  const bool same_bytes = expected.checksum == found.checksum;
  expected.checksum = found.checksum;
  if (expected != found)
    return broken(DiskFault::kForeign);
  if (!same_bytes)
    return broken(DiskFault::kChecksum);
  // What was used last goes last.
  ::futimens(fd.get(), nullptr);
  return {};
}

BlockFileResult write_block_file(const std::string& file, const std::string& temporary,
                                 const BlockName& name, std::span<const std::byte> block) {
  auto written = write_and_publish(file, temporary, name, block);
  if (!written)
    ::unlink(temporary.c_str());
  return written;
}

}  // namespace dormouse

#include "device/host/block_census.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "device/host/host_memory.h"

namespace dormouse {
namespace {

struct OpenBlock {
  BlockIdentity identity;
  std::uint64_t bytes = 0;
};

// The block behind an entry of /proc/PID/fd, if it is one.
std::optional<OpenBlock> block_behind(const std::filesystem::path& entry) {
  std::error_code vanished;
  const auto target = std::filesystem::read_symlink(entry, vanished);
  if (target.native().find(kHostBlockName) == std::string::npos)
    return std::nullopt;
  struct stat found {};
  if (::stat(entry.c_str(), &found) != 0)
    return std::nullopt;
  return OpenBlock{{found.st_dev, found.st_ino}, static_cast<std::uint64_t>(found.st_blocks) * 512};
}

// A line of /proc/PID/maps: addresses, rights, offset, major:minor of the device, inode, name.
std::optional<BlockIdentity> block_in_mapping(const std::string& line) {
  if (line.find(kHostBlockName) == std::string::npos)
    return std::nullopt;
  std::istringstream fields(line);
  std::string addresses, rights, offset;
  unsigned major_number = 0, minor_number = 0;
  char colon = 0;
  std::uint64_t inode = 0;
  fields >> addresses >> rights >> offset >> std::hex >> major_number >> colon >> minor_number >>
      std::dec >> inode;
  if (!fields || colon != ':')
    return std::nullopt;
  return BlockIdentity{makedev(major_number, minor_number), inode};
}

void find_in_process(int pid, const BlockCensus& blocks, std::vector<BlockHolder>& found) {
  const std::string process = fmt::format("/proc/{}", pid);
  std::error_code hidden;
  std::filesystem::directory_iterator entry(process + "/fd", hidden);
  for (; !hidden && entry != std::filesystem::directory_iterator(); entry.increment(hidden))
    if (const auto block = block_behind(entry->path()); block && blocks.contains(block->identity))
      found.push_back({pid, entry->path().native()});
  std::ifstream maps(process + "/maps");
  for (std::string line; std::getline(maps, line);)
    if (const auto block = block_in_mapping(line); block && blocks.contains(*block))
      found.push_back({pid, process + "/maps"});
}

}  // namespace

Result<BlockCensus> own_blocks() {
  BlockCensus blocks;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error))
    if (const auto block = block_behind(entry.path()))
      blocks.emplace(block->identity, block->bytes);
  if (error)
    return fail(ErrorCode::kInternal, "/proc/self/fd: " + error.message());
  return blocks;
}

std::uint64_t bytes_of(const BlockCensus& blocks) {
  std::uint64_t sum = 0;
  for (const auto& [identity, bytes] : blocks)
    sum += bytes;
  return sum;
}

BlockCensus gone_since(const BlockCensus& before, const BlockCensus& after) {
  BlockCensus gone = before;
  for (const auto& [identity, bytes] : after)
    gone.erase(identity);
  return gone;
}

std::vector<BlockHolder> holders_of(const BlockCensus& blocks) {
  std::vector<BlockHolder> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    int pid = 0;
    const auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (bad == std::errc() && end == name.data() + name.size())
      find_in_process(pid, blocks, found);
  }
  return found;
}

}  // namespace dormouse

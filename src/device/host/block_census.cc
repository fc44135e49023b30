#include "device/host/block_census.h"

#include <fmt/core.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
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
  bool writable = false;
};

struct MappedBlock {
  BlockIdentity identity;
  bool writable = false;
};

// The block behind an entry of /proc/PID/fd, if it is one.
std::optional<OpenBlock> block_behind(const std::filesystem::path& entry) {
  std::error_code vanished;
  const auto target = std::filesystem::read_symlink(entry, vanished);
  if (target.native().find(kHostBlockName) == std::string::npos)
    return std::nullopt;
  struct stat found {};
  struct stat link {};  // its mode tells how the descriptor was opened
  if (::stat(entry.c_str(), &found) != 0 || ::lstat(entry.c_str(), &link) != 0)
    return std::nullopt;
  return OpenBlock{{found.st_dev, found.st_ino},
                   static_cast<std::uint64_t>(found.st_blocks) * 512,
                   (link.st_mode & S_IWUSR) != 0};
}

// A line of /proc/PID/maps: addresses, rights, offset, major:minor of the device, inode, name.
std::optional<MappedBlock> block_in_mapping(const std::string& line) {
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
  return MappedBlock{{makedev(major_number, minor_number), inode},
                     rights.find('w') != std::string::npos};
}

// Returns why the process could not be looked into, if so.
std::error_code find_in_process(int pid, const BlockCensus& blocks,
                                std::vector<BlockHolder>& found) {
  const std::string process = fmt::format("/proc/{}", pid);
  std::error_code hidden;
  std::filesystem::directory_iterator entry(process + "/fd", hidden);
  for (; !hidden && entry != std::filesystem::directory_iterator(); entry.increment(hidden))
    if (const auto block = block_behind(entry->path()); block && blocks.contains(block->identity))
      found.push_back({pid, entry->path().native(), block->identity, block->writable});
  std::ifstream maps(process + "/maps");
  for (std::string line; std::getline(maps, line);)
    if (const auto block = block_in_mapping(line); block && blocks.contains(block->identity))
      found.push_back({pid, process + "/maps", block->identity, block->writable});
  return hidden;
}

// A process of another PID namespace has the number 0, and is not known to have ended.
bool has_ended(pid_t process) {
  return process > 0 && ::kill(process, 0) != 0 && errno == ESRCH;
}

}  // namespace

Result<BlockCensus> own_blocks() {
  return blocks_of_process(::getpid());
}

Result<BlockCensus> blocks_of_process(pid_t process) {
  const std::string folder = "/proc/" + std::to_string(process) + "/fd";
  BlockCensus blocks;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (const auto block = block_behind(entry.path()))
      blocks.emplace(block->identity, block->bytes);
  if (error)
    return fail(ErrorCode::kInternal, folder + ": " + error.message());
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

Result<std::uint64_t> bytes_held_by(pid_t process, const BlockCensus& blocks) {
  std::vector<BlockHolder> holders;
  const std::error_code hidden = find_in_process(process, blocks, holders);
  if (hidden && !has_ended(process))
    return fail(ErrorCode::kUnavailable,
                fmt::format("what process {} holds is hidden: {}", process, hidden.message()));
  BlockCensus held;
  for (const BlockHolder& holder : holders)
    if (process != ::getpid() || !holder.writable)
      held.insert(*blocks.find(holder.block));
  return bytes_of(held);
}

std::vector<BlockHolder> holders_of(const BlockCensus& blocks) {
  std::vector<BlockHolder> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    int pid = 0;
    const auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (bad == std::errc() && end == name.data() + name.size())
      (void)find_in_process(pid, blocks, found);
  }
  return found;
}

}  // namespace dormouse

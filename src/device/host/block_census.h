// Which memfd blocks exist and who holds them, as the operating system tells: independent of every
// counter of our own.
//
// A block is in memory for as long as any process has a descriptor or a mapping of it; so memory
// was really given back when nobody holds the blocks that are gone.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dormouse/result.h"

namespace dormouse {

// A block as the kernel knows it, in every process alike. Used again only after the block is gone.
struct BlockIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  auto operator<=>(const BlockIdentity&) const = default;
};

// Bytes of memory by block.
using BlockCensus = std::map<BlockIdentity, std::uint64_t>;

// The blocks named kHostBlockName that this process, or another, holds by a descriptor.
Result<BlockCensus> own_blocks();
Result<BlockCensus> blocks_of_process(pid_t process);

std::uint64_t bytes_of(const BlockCensus& blocks);

// The blocks of `before` that are not in `after`.
BlockCensus gone_since(const BlockCensus& before, const BlockCensus& after);

// Bytes of these blocks that one process holds by a descriptor or a mapping; 0 if there is none
// such. Of this process itself only what holds them for reading, as an importer does. kUnavailable:
// a process of another user, one that has ended but was not waited for unless we are root, or of a
// PID namespace that is not ours, whose number is 0.
Result<std::uint64_t> bytes_held_by(pid_t process, const BlockCensus& blocks);

struct BlockHolder {
  int pid = 0;
  std::string through;  // "/proc/12/fd/7", or "/proc/12/maps"
  BlockIdentity block = {};
  bool writable = false;  // opened, or mapped, for writing
};

// Every descriptor and mapping of these blocks in any process, this one included. Processes of
// other users are seen by root alone.
std::vector<BlockHolder> holders_of(const BlockCensus& blocks);

}  // namespace dormouse

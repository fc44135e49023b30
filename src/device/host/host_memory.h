// What the operating system says about memory: what our own counters are checked against.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dormouse/result.h"

namespace dormouse {

// Bytes that can be had without swapping: MemAvailable, or what the control group leaves if that
// is less.
Result<std::uint64_t> available_host_memory();

// Shared memory in use by all processes (Shmem in /proc/meminfo): where memfd blocks are counted.
Result<std::uint64_t> shared_memory_in_use();

// Resident bytes of this process.
Result<std::uint64_t> resident_memory();

// Descriptors and mappings that process `pid` (0: this one) holds of memfd blocks named
// kHostBlockName.
struct BlockReferences {
  std::size_t descriptors = 0;
  std::size_t mappings = 0;
};
inline constexpr const char* kHostBlockName = "dormouse-block";
Result<BlockReferences> block_references(int pid = 0);

}  // namespace dormouse

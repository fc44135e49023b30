// The machine's own limit for a wake-up: bytes copied into fresh shared memory, and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "dormouse/result.h"

namespace dormouse::cli {

enum class BareCopy {
  kAllocated,  // memfd_create, fallocate, mmap, memcpy: lack of memory is an error, as in a wake-up
  kMapped,     // without fallocate: lack of memory kills the process
  kWritten,    // memfd_create, pwrite, no mapping
};

// Milliseconds from nothing until the bytes are there, by this many threads.
Result<double> time_bare_copy(BareCopy kind, std::span<const std::byte> from,
                              std::uint32_t threads);

}  // namespace dormouse::cli

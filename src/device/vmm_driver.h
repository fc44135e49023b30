// Virtual memory of a device: addresses, physical blocks, and the mappings that join them.
//
// The seam under everything that sleeps. An address range is reserved once and kept; blocks come
// and go behind it. Names and order are those of the CUDA driver's virtual memory calls.
//
// Owns:    nothing on the caller's behalf: every reservation and block is given back by the caller.
// Threads: any, but calls on one range or one block must not overlap.
// Order:   reserve, create, map, set_access; then unmap, release, free_reservation.
// Errors:  kResourceExhausted when memory is short; kInternal for what the device reports.
// Units:   bytes; every size and address is a multiple of granularity().
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/unique_fd.h"
#include "dormouse/result.h"

namespace dormouse {

// A physical block. Alive until released, even while it is mapped nowhere.
struct BlockHandle {
  std::uint64_t id = 0;
  bool operator==(const BlockHandle&) const = default;
};

// Bytes that a process holds, as the system tells. Of this process itself only what holds them as
// an importer would: for reading. kUnavailable where it cannot be known.
using BytesHeldBy = std::function<Result<std::uint64_t>(pid_t process)>;

enum class Access { kNone, kRead, kReadWrite };

class VmmDriver {
 public:
  virtual ~VmmDriver() = default;

  virtual std::size_t granularity() const = 0;

  // Addresses without memory behind them; touching them faults.
  virtual Result<std::byte*> reserve(std::size_t size) = 0;
  virtual Status free_reservation(std::byte* address, std::size_t size) = 0;

  // Zeroed memory, all of it there when the call returns.
  virtual Result<BlockHandle> create(std::size_t size) = 0;
  // The memory is free again once no mapping and no exported descriptor of it is left anywhere.
  virtual Status release(BlockHandle block) = 0;

  virtual Result<std::size_t> block_size(BlockHandle block) const = 0;

  // Puts the whole block at `address`, without access yet.
  virtual Status map(std::byte* address, std::size_t size, BlockHandle block) = 0;
  virtual Status set_access(std::byte* address, std::size_t size, Access access) = 0;
  // The range stays reserved.
  virtual Status unmap(std::byte* address, std::size_t size) = 0;

  // A descriptor through which another process reads the same block: it pins the block's memory.
  // Who has it can neither write nor resize the block. The owner's mappings stay as writable as
  // they are, but a mapping made after the first export can only be read.
  virtual Result<UniqueFd> export_block(BlockHandle block) = 0;
  // A block of another process, to be mapped for reading alone and released like any other. It is
  // not counted among this driver's own memory. kDataLoss: the descriptor is no block of `size`
  // bytes, or its owner could take pages out of it.
  virtual Result<BlockHandle> import_block(UniqueFd descriptor, std::size_t size) = 0;

  // Tells of these blocks, also after their release, how much of them a process holds.
  virtual Result<BytesHeldBy> holding(std::span<const BlockHandle> blocks) const = 0;

  // Memory in use on the device by all processes, as its own system reports it.
  virtual Result<std::uint64_t> device_bytes_in_use() const = 0;
};

}  // namespace dormouse

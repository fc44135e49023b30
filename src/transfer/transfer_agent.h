// Moves bytes of registered memory between processes. One agent for each rank.
//
// A registration lives exactly as long as the mapping it covers: MemoryRegistration and
// RemoteMemory are owned by whoever follows the mapping, and gone before it goes.
//
// Threads: register_memory and the destructors of registrations from one thread; everything else
//          from any.
// Errors:  kUnavailable (no registration, peer gone), kTransferFailed, kDeadlineExceeded,
//          kCancelled, kDataLoss (metadata that is none).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "device/vmm_driver.h"
#include "dormouse/kv_connector.h"
#include "dormouse/result.h"

namespace dormouse {

// What a peer needs for reading this memory. Sent once, then dropped.
struct ExportedMemory {
  std::string metadata;
  std::vector<UniqueFd> descriptors = {};  // read-only
};

// Registered for as long as this object lives.
class MemoryRegistration {
 public:
  virtual ~MemoryRegistration() = default;
  virtual Result<ExportedMemory> export_memory() = 0;
};

// A peer's memory as this process reaches it, for as long as this object lives.
class RemoteMemory {
 public:
  virtual ~RemoteMemory() = default;
  virtual std::size_t size() const = 0;
};

struct ReadSpan {
  std::uint64_t remote_offset = 0;
  std::byte* local = nullptr;
  std::size_t bytes = 0;
};

struct ReadControl {
  std::chrono::steady_clock::time_point deadline;
  const std::atomic<bool>* cancelled = nullptr;
};

class TransferAgent {
 public:
  virtual ~TransferAgent() = default;

  virtual Result<std::unique_ptr<MemoryRegistration>> register_memory(const KvCaches& caches) = 0;
  virtual Result<std::unique_ptr<RemoteMemory>> import_memory(ExportedMemory exported) = 0;

  // Copies every span; returns when all are there or none is of use. kInvalidArgument for a span
  // outside the remote memory, before anything is written.
  virtual Status read(const RemoteMemory& remote, std::span<const ReadSpan> spans,
                      const ReadControl& control) = 0;

  // Tells of `caches`, also once they are unmapped, how much of them a process holds: 0 once it let
  // go, or has ended.
  virtual Result<BytesHeldBy> holding(const KvCaches& caches) const = 0;
};

}  // namespace dormouse

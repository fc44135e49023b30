// The memory part's vocabulary: tags, listeners that follow a tag's mapping, usage and receipts.
//
// A registration lives exactly as long as the mapping it covers. Whoever registers a tag's memory
// with anything (a transport, a peer, a graph) subscribes a MappingListener and drops the
// registration in before_unmap.
#pragma once

#include <atomic>
#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dormouse/result.h"

namespace dormouse {

class MemoryTag {
 public:
  explicit MemoryTag(std::string_view name) : name_(name) {}
  const std::string& name() const { return name_; }
  auto operator<=>(const MemoryTag&) const = default;

 private:
  std::string name_;
};

inline const MemoryTag kWeightsTag{"weights"};
inline const MemoryTag kKvCacheTag{"kv_cache"};

// Memory that stays although a mapping goes.
struct KeptMemory {
  std::string what;
  std::uint64_t bytes = 0;
  std::string why;
};

// One unmapping under way, as listeners see it.
struct Unmapping {
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  bool force = false;  // go on without whoever does not let go, and say so in `kept`
  const std::atomic<bool>* cancelled = nullptr;  // set: stop waiting and fail with kCancelled
  std::vector<KeptMemory> kept = {};             // for the receipt

  // Whether to wait on for whoever has not let go: kCancelled once a wake-up has overtaken the
  // sleep, kDeadlineExceeded after the deadline.
  Status may_wait() const {
    if (cancelled != nullptr && cancelled->load())
      return fail(ErrorCode::kCancelled, "cancelled before anything was unmapped");
    if (std::chrono::steady_clock::now() >= deadline)
      return fail(ErrorCode::kDeadlineExceeded, "the deadline has passed");
    return {};
  }
};

// Follows the mapping of one tag.
//
// Threads: both calls come from the thread that changes the mapping, never concurrently.
// Order:   before_unmap comes before any page of the tag is unmapped; after_map comes after all
//          are mapped.
class MappingListener {
 public:
  virtual ~MappingListener() = default;

  // Drains what is in flight until the deadline, then drops every registration in the tag's memory.
  // On error nothing of the tag is unmapped, and after_map is called on those that had released.
  virtual Status before_unmap(Unmapping& unmapping) = 0;

  // Registers the memory anew. Idempotent: it also runs after a wake-up that mapped nothing, so
  // that a restore that failed is tried again.
  virtual Status after_map() = 0;
};

// Bytes of one tag by where they are.
struct TagUsage {
  std::uint64_t mapped = 0;      // device memory behind addresses
  std::uint64_t asleep = 0;      // reserved addresses without memory
  std::uint64_t backed_up = 0;   // host copies held
  std::uint64_t leaked = 0;      // device memory that the driver refused to take back; tried again
  std::uint64_t generation = 0;  // grows each time the tag is mapped
  bool read_only = false;
};
using MemoryUsage = std::map<std::string, TagUsage>;

// What one transition did. Times are milliseconds.
struct MemoryReceipt {
  struct Tag {
    std::uint64_t unmapped = 0;
    std::uint64_t mapped = 0;
    std::uint64_t copied_out = 0;
    std::uint64_t copied_in = 0;
    std::uint64_t backup_kept = 0;
  };
  std::map<std::string, Tag> tags;
  std::uint64_t expected_freed = 0;  // device bytes that should have come back
  std::int64_t measured_freed = 0;   // device bytes that did, as the driver's device reports
  // In order: drain, preflight, backup, hooks, unmap ...
  std::vector<std::pair<std::string, double>> phases_ms;
  std::vector<KeptMemory> kept;  // what stays, and why
};

// How a caller follows and cuts short a transition.
struct TransitionControl {
  std::chrono::milliseconds release_timeout{5'000};  // for all listeners together
  bool force = false;                                // see Unmapping
  const std::atomic<bool>* cancelled = nullptr;      // looked at until the last hook has run
  // Phase, bytes done, bytes to do.
  std::function<void(std::string_view, std::uint64_t, std::uint64_t)> progress = {};
};

}  // namespace dormouse

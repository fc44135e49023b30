// What an engine counts, since it started. Plain values for metrics.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "dormouse/kv_connector.h"

namespace dormouse {

// Counts values by size. `bounds` ascend and outlive the histogram.
class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds)
      : bounds_(bounds), counts_(bounds.size() + 1) {}
  void observe(double value) {
    const auto bucket = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
    ++counts_[static_cast<std::size_t>(bucket)];
    sum_ += value;
  }

  std::span<const double> bounds() const { return bounds_; }
  // Values up to each bound and above the one before; the last: above every bound.
  const std::vector<std::uint64_t>& counts() const { return counts_; }
  double sum() const { return sum_; }

 private:
  std::span<const double> bounds_;
  std::vector<std::uint64_t> counts_;
  double sum_ = 0;
};

inline constexpr std::array<double, 13> kStepTokenBounds = {1,   8,    16,   32,   64,   128,  256,
                                                            512, 1024, 2048, 4096, 8192, 16384};

// What changes the memory, as control calls name it.
enum class MemoryOperation { kSleep, kReleaseKvCacheMemory, kWake };
inline constexpr std::array<double, 12> kOperationSecondBounds = {0.01, 0.03, 0.1, 0.3, 1,   3,
                                                                  10,   30,   60,  120, 300, 600};

// Calls that changed something, and those that failed.
struct OperationCounters {
  std::uint64_t succeeded = 0;
  std::uint64_t failed = 0;
  bool in_flight = false;
  Histogram seconds{kOperationSecondBounds};  // that each of both took
};

struct EngineCounters {
  std::uint64_t prompt_tokens = 0;
  std::uint64_t generation_tokens = 0;
  std::uint64_t prefix_cache_queries = 0;  // prompt tokens looked up
  std::uint64_t prefix_cache_hits = 0;     // of those, found
  std::uint64_t preemptions = 0;
  std::array<std::uint64_t, 4> finished = {};  // requests, by FinishReason
  std::uint64_t requests_accepted = 0;
  std::uint64_t requests_refused = 0;
  std::uint64_t steps = 0;
  Histogram step_tokens{kStepTokenBounds};           // computed in each: of prompts and of answers
  std::array<OperationCounters, 3> operations = {};  // by MemoryOperation
  std::uint64_t external_cache_queries = 0;          // prompt tokens looked up in the KV connector
  std::uint64_t external_cache_hits = 0;             // of those, found
  std::uint64_t transferred_tokens = 0;              // of prompts, loaded through the KV connector
  std::uint64_t recomputed_tokens = 0;               // of prompts, computed because a load failed
  KvConnectorStats connector;                        // the connector's own
};

}  // namespace dormouse

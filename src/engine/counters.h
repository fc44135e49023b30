// What the engine counts, since it started. Plain values for metrics.
#pragma once

#include <array>
#include <cstdint>

#include "dormouse/kv_connector.h"

namespace dormouse {

// Up to how many tokens a step has to count in a bucket.
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
  double seconds = 0;  // of all that ended
  std::array<std::uint64_t, kOperationSecondBounds.size() + 1> by_seconds = {};
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
  std::uint64_t step_tokens = 0;  // computed in them: of prompts and of answers
  // Steps by their tokens; the last counts those above every bound.
  std::array<std::uint64_t, kStepTokenBounds.size() + 1> steps_by_tokens = {};
  std::array<OperationCounters, 3> operations = {};  // by MemoryOperation
  std::uint64_t transferred_tokens = 0;              // of prompts, loaded through the KV connector
  std::uint64_t recomputed_tokens = 0;               // of prompts, computed because a load failed
  KvConnectorStats connector;                        // the connector's own
};

}  // namespace dormouse

// What the engine counts, since it started. Plain values for metrics.
#pragma once

#include <array>
#include <cstdint>

#include "dormouse/kv_connector.h"

namespace dormouse {

// Up to how many tokens a step has to count in a bucket.
inline constexpr std::array<double, 13> kStepTokenBounds = {1,   8,    16,   32,   64,   128,  256,
                                                            512, 1024, 2048, 4096, 8192, 16384};

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
  std::uint64_t sleeps = 0;    // completed, of level 1 and deeper or of the KV cache alone
  std::uint64_t wake_ups = 0;  // completed
  std::uint64_t transition_failures = 0;
  double sleep_seconds = 0;  // spent in them
  double wake_up_seconds = 0;
  std::uint64_t transferred_tokens = 0;  // of prompts, loaded through the KV connector
  std::uint64_t recomputed_tokens = 0;   // of prompts, computed because a load failed
  KvConnectorStats connector;            // the connector's own
};

}  // namespace dormouse

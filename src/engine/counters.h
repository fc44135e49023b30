// What the engine counts, since it started. Plain values for metrics.
#pragma once

#include <array>
#include <cstdint>

namespace dormouse {

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
  std::uint64_t sleeps = 0;    // completed, of level 1 and deeper or of the KV cache alone
  std::uint64_t wake_ups = 0;  // completed
  std::uint64_t transition_failures = 0;
  double sleep_seconds = 0;  // spent in them
  double wake_up_seconds = 0;
};

}  // namespace dormouse

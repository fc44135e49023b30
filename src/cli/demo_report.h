// What the demonstration found, as a table and as one line of JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dormouse::cli {

// One cycle of one phase: asleep, awake again, asked again.
struct PhaseResult {
  std::string name;
  std::string connector;  // of a prefill and a decode instance; empty: a single engine
  int level = 0;          // as the engine reports it; 0 where the KV cache alone is released
  std::uint32_t cycle = 1;
  std::size_t compared = 0;
  std::size_t identical = 0;
  double sleep_ms = 0;
  double wake_ms = 0;                // everything until requests are accepted again
  std::uint64_t expected_freed = 0;  // bytes that the engine said it gives back
  std::int64_t freed = 0;            // bytes that came back, as the operating system measured
  std::uint64_t asleep_bytes = 0;    // bytes of blocks that the process held while asleep
  std::uint64_t backup_bytes = 0;    // of ordinary host memory, to wake from
  // Of prompts, as the decode side counts them.
  std::uint64_t prompt_tokens = 0;
  std::uint64_t transferred_tokens = 0;
  std::uint64_t recomputed_tokens = 0;
  std::uint64_t stale_refused = 0;  // references to blocks that are no more, by their owner
  std::vector<std::string> problems;
};

struct DemoReport {
  std::size_t prompts = 0;
  std::vector<PhaseResult> phases;

  std::size_t compared() const;
  std::size_t identical() const;
  std::uint64_t sum(std::uint64_t PhaseResult::*count) const;
  // Every answer identical, and no problem in any phase.
  bool good() const;
};

// Whether two amounts agree within five per cent of what was expected.
bool agrees(std::int64_t measured, std::uint64_t expected);

std::string table_head();
std::string table_row(const PhaseResult& phase);
std::string to_json(const DemoReport& report);

}  // namespace dormouse::cli

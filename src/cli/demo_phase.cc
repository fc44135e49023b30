#include "cli/demo_phase.h"

#include <fmt/core.h>

#include <chrono>

#include "base/check.h"
#include "cli/units.h"
#include "device/host/block_census.h"
#include "device/host/host_memory.h"

namespace dormouse::cli {
namespace {

using Clock = std::chrono::steady_clock;

// What one sleep did, by the engine's own account and by the operating system's.
struct Slept {
  TransitionReport report;
  double ms = 0;
  std::int64_t freed = 0;
  BlockCensus before;
  BlockCensus after;
};

Result<Slept> sleep_measured(Engine& engine, const Phase& phase) {
  Slept slept;
  DM_TRY_ASSIGN(slept.before, own_blocks());
  DM_TRY_ASSIGN(const std::uint64_t before, shared_memory_in_use());
  const auto start = Clock::now();
  DM_TRY_ASSIGN(slept.report, phase.sleep(engine));
  slept.ms = ms_since(start);
  DM_TRY_ASSIGN(const std::uint64_t after, shared_memory_in_use());
  slept.freed = static_cast<std::int64_t>(before) - static_cast<std::int64_t>(after);
  DM_TRY_ASSIGN(slept.after, own_blocks());
  return slept;
}

void check_refusal(Engine& engine, const Questions& questions, PhaseResult& result) {
  const auto accepted =
      engine.submit(greedy_request(questions.prompts.front(), 1), [](RequestOutput) {});
  if (accepted)
    result.problems.emplace_back("a request was accepted while the engine was not ready");
  else if (accepted.error().code != ErrorCode::kUnavailable)
    result.problems.push_back("a request was refused for the wrong reason: " +
                              accepted.error().message);
}

Result<double> wake_checked(Engine& engine, const Phase& phase, const Questions& questions,
                            PhaseResult& result) {
  double ms = 0;
  for (const auto& step : phase.wake) {
    check_refusal(engine, questions, result);
    const auto start = Clock::now();
    DM_TRY_ASSIGN(const TransitionReport report, step(engine));
    ms += ms_since(start);
  }
  return ms;
}

void check_references(const Phase& phase, const Slept& slept, PhaseResult& result) {
  const BlockCensus gone = gone_since(slept.before, slept.after);
  if (bytes_of(gone) != slept.report.memory.expected_freed)
    result.problems.push_back(
        fmt::format("blocks of {} bytes are gone, the engine gave back {} bytes", bytes_of(gone),
                    slept.report.memory.expected_freed));
  for (const BlockHolder& holder : holders_of(gone))
    result.problems.push_back("a block that was given back is still held: " + holder.through);
  if (!phase.gives_back_everything)
    return;
  const auto left = block_references();
  if (!left)
    result.problems.push_back(left.error().message);
  else if (left->descriptors + left->mappings > 0)
    result.problems.push_back(fmt::format("{} descriptors and {} mappings of blocks are left",
                                          left->descriptors, left->mappings));
}

void check_freed(const Slept& slept, PhaseResult& result) {
  const std::uint64_t expected = slept.report.memory.expected_freed;
  if (!agrees(slept.freed, expected))
    result.problems.push_back(
        fmt::format("shared memory fell by {} bytes, expected {} (measured twice; other programs "
                    "that use shared memory at the same time disturb this)",
                    slept.freed, expected));
  result.expected_freed = expected;
  result.freed = slept.freed;
  result.asleep_bytes = bytes_of(slept.after);
  result.sleep_ms = slept.ms;
  result.level = slept.report.level;
  for (const auto& [tag, bytes] : slept.report.memory.tags)
    result.backup_bytes += bytes.backup_kept;
}

auto wake(std::vector<std::string> tags) {
  return [tags = std::move(tags)](Engine& engine) { return engine.wake_up(tags); };
}

auto wake_everything() {
  return [](Engine& engine) { return engine.wake_up(std::nullopt); };
}

auto sleep(int level) {
  return [level](Engine& engine) { return engine.sleep({.level = level}); };
}

}  // namespace

std::vector<Phase> all_phases() {
  return {
      {.name = "level 1", .sleep = sleep(1), .wake = {wake_everything()}},
      {.name = "level 2",
       .sleep = sleep(2),
       .wake = {wake_everything(), [](Engine& engine) { return engine.reload_weights(); }}},
      {.name = "KV only",
       .gives_back_everything = false,
       .sleep = [](Engine& engine) { return engine.release_kv_cache_memory(); },
       .wake = {wake({"kv_cache"})}},
      {.name = "partial wake", .sleep = sleep(1), .wake = {wake({"weights"}), wake({"kv_cache"})}}};
}

Result<PhaseResult> run_phase(Engine& engine, const Phase& phase, const Questions& questions) {
  PhaseResult result{.name = phase.name};
  DM_TRY_ASSIGN(Slept slept, sleep_measured(engine, phase));
  if (!agrees(slept.freed, slept.report.memory.expected_freed)) {
    DM_TRY_ASSIGN([[maybe_unused]] const double ms, wake_checked(engine, phase, questions, result));
    DM_TRY_ASSIGN(slept, sleep_measured(engine, phase));
  }
  check_freed(slept, result);
  check_references(phase, slept, result);

  DM_TRY_ASSIGN(result.wake_ms, wake_checked(engine, phase, questions, result));
  DM_TRY_ASSIGN(const BlockCensus awake, own_blocks());
  if (bytes_of(awake) != bytes_of(slept.before))
    result.problems.push_back(fmt::format("blocks of {} bytes before the sleep, {} after",
                                          bytes_of(slept.before), bytes_of(awake)));

  DM_TRY_ASSIGN(const std::vector<Answer> answers,
                ask(engine, questions.prompts, questions.tokens));
  result.compared = questions.first.size();
  result.identical = count_identical(answers, questions.first);
  return result;
}

}  // namespace dormouse::cli

// Control calls, carried out on the engine's thread.
#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "engine/engine_core.h"

namespace dormouse {
namespace {

constexpr std::string_view kScheduling = "scheduling";
constexpr std::chrono::milliseconds kLeaseDrain{30'000};
constexpr std::chrono::milliseconds kRequestDrain{300'000};
constexpr std::chrono::milliseconds kReleaseTimeout{5'000};
constexpr std::chrono::milliseconds kLeastReleaseTimeout{500};  // also after a drain to the end

std::vector<MemoryTag> offloaded(int level) {
  return level == 1 ? std::vector{kWeightsTag} : std::vector<MemoryTag>{};
}

std::optional<MemoryOperation> operation_of(const ControlAction& action) {
  if (std::holds_alternative<SleepAction>(action))
    return MemoryOperation::kSleep;
  if (std::holds_alternative<ReleaseKvCacheAction>(action))
    return MemoryOperation::kReleaseKvCacheMemory;
  if (std::holds_alternative<WakeUpAction>(action))
    return MemoryOperation::kWake;
  return std::nullopt;
}

void count(OperationCounters& counters, const Result<TransitionReport>& result, double seconds) {
  counters.in_flight = false;
  if (result && !result->changed)
    return;
  ++(result ? counters.succeeded : counters.failed);
  counters.seconds.observe(seconds);
}

}  // namespace

// One call a turn, so that many of them do not keep the model from running.
void EngineCore::advance_controls() {
  if (active_)
    return advance_drain();
  {
    const std::lock_guard lock(mutex_);
    if (controls_.empty())
      return;
    active_ = controls_.front();
    controls_.pop_front();
  }
  begin_control();
}

void EngineCore::begin_control() {
  active_->started = Clock::now();
  active_->was_paused = lifecycle_.is_paused();
  take_inbox();
  if (const auto operation = operation_of(active_->action)) {
    const std::lock_guard lock(mutex_);
    counters_.operations[static_cast<std::size_t>(*operation)].in_flight = true;
  }
  std::optional<Result<TransitionReport>> result = std::visit(
      [this](const auto& action) -> std::optional<Result<TransitionReport>> {
        return begin(action);
      },
      active_->action);
  if (result)
    answer(std::move(*result));
  else
    advance_drain();
}

void EngineCore::answer(Result<TransitionReport> result) {
  const auto control = active_;
  const double seconds = std::chrono::duration<double>(Clock::now() - control->started).count();
  const bool is_reset = std::holds_alternative<ResetPrefixCacheAction>(control->action);
  if (result)
    result->total_ms = 1e3 * seconds;
  {
    const std::lock_guard lock(mutex_);
    active_ = nullptr;
    status_.transition_phase.clear();
    status_.transition_progress = 0;
    if (const auto operation = operation_of(control->action)) {
      count(counters_.operations[static_cast<std::size_t>(*operation)], result, seconds);
      if (result && result->changed)
        status_.last_transition = *result;
    }
  }
  if (!result)
    log(LogLevel::kWarning, "engine", "transition refused or failed: {}", result.error().message);
  else if (result->changed && !is_reset)
    log(LogLevel::kInfo, "engine", "state={} level={} freed_bytes={} ms={:.1f}",
        to_string(result->state), result->level, result->memory.measured_freed, result->total_ms);
  publish();
  control->answer.set_value(std::move(result));
}

// --- sleep and pause: drain first ---

std::optional<Result<TransitionReport>> EngineCore::begin(const SleepAction& sleep) {
  const int level = sleep.options.level;
  if (level == 1 && !lifecycle_.weights_valid())
    return fail(
        ErrorCode::kFailedPrecondition,
        "The weights were discarded, so level 1 has nothing to keep. Use level 2, or wake up "
        "and load them first: POST /wake_up, POST /reload_weights.");
  if (lifecycle_.all_asleep() && level <= lifecycle_.level())
    return report(false);
  if (active_->cancelled)
    return fail(ErrorCode::kCancelled, "The sleep was cancelled by a later call.");
  if (const auto allowed = on_every_rank(CheckSleepCall{offloaded(level)}); !allowed)
    return tl::unexpected(allowed.error());
  start_draining(sleep.options.mode, true);
  return std::nullopt;
}

std::optional<Result<TransitionReport>> EngineCore::begin(const PauseAction& pause) {
  if (lifecycle_.any_asleep()) {
    change_state([](Lifecycle& lifecycle) {
      lifecycle.set_paused(true);
      lifecycle.settle();
    });
    return report(!active_->was_paused);
  }
  start_draining(pause.mode, false);
  return std::nullopt;
}

void EngineCore::start_draining(PauseMode mode, bool closes_gate) {
  change_state([&](Lifecycle& lifecycle) { lifecycle.begin(EngineState::kPausing, closes_gate); });
  take_inbox();
  if (mode == PauseMode::kAbort)
    deliver(scheduler_->abort_all());
  scheduler_->set_admission(mode == PauseMode::kKeep ? PauseState::kPausedAll
                                                     : PauseState::kPausedNew);
}

std::optional<EngineCore::Clock::time_point> EngineCore::drain_deadline() const {
  std::optional<Clock::time_point> deadline;
  if (active_)
    if (const auto* sleep = std::get_if<SleepAction>(&active_->action))
      deadline = active_->started + sleep->options.deadline.value_or(kRequestDrain);
  if (shutdown_deadline_ && Clock::now() < *shutdown_deadline_)
    deadline = std::min(deadline.value_or(*shutdown_deadline_), *shutdown_deadline_);
  return deadline;
}

void EngineCore::advance_drain() {
  if (active_->cancelled)
    return answer(undo_drain({ErrorCode::kCancelled, "The sleep was cancelled by a later call."}));
  if ((scheduler_->has_unfinished() && may_step()) || waits_for_leases()) {
    const auto deadline = [&] {
      const std::lock_guard lock(mutex_);
      return drain_deadline();
    }();
    if (!deadline || Clock::now() < *deadline)
      return;
    if (scheduler_->has_unfinished() && may_step())
      return answer(undo_drain(held_up()));
  }
  answer(after_drain());
}

// What a sleep of mode wait drains to its deadline; then it ends them.
bool EngineCore::waits_for_leases() const {
  const auto* sleep = std::get_if<SleepAction>(&active_->action);
  return sleep && sleep->options.mode == PauseMode::kWait && scheduler_->transfers().sends > 0 &&
         Clock::now() < active_->started + sleep->options.deadline.value_or(kLeaseDrain);
}

Error EngineCore::held_up() const {
  const TransfersUnderWay transfers = scheduler_->transfers();
  return {
      ErrorCode::kDeadlineExceeded,
      fmt::format("{} requests were still running at the deadline, {} of them loading KV, and "
                  "{} held KV for peers; nothing was changed. Use mode abort, or a longer "
                  "timeout",
                  scheduler_->num_running() + transfers.loads, transfers.loads, transfers.sends)};
}

Result<TransitionReport> EngineCore::undo_drain(Error error) {
  const bool paused = active_->was_paused;
  change_state([&](Lifecycle& lifecycle) {
    lifecycle.set_paused(paused);
    lifecycle.settle();
  });
  scheduler_->set_admission(paused ? PauseState::kPausedAll : PauseState::kUnpaused);
  return tl::unexpected(std::move(error));
}

Result<TransitionReport> EngineCore::after_drain() {
  if (const auto* sleep = std::get_if<SleepAction>(&active_->action))
    return give_back(SleepCall{offloaded(sleep->options.level)}, sleep->options.level);
  const auto& pause = std::get<PauseAction>(active_->action);
  if (pause.clear_cache) {
    scheduler_->preempt_all();
    (void)pool_->reset_cached();
  }
  const bool changed = !active_->was_paused;
  scheduler_->set_admission(PauseState::kPausedAll);
  change_state([](Lifecycle& lifecycle) {
    lifecycle.set_paused(true);
    lifecycle.settle();
  });
  return report(changed);
}

// --- memory ---

Result<TransitionReport> EngineCore::give_back(const RankCall& call, int level) {
  const std::chrono::duration<double, std::milli> drained = Clock::now() - active_->started;
  change_state([](Lifecycle& lifecycle) { lifecycle.begin(EngineState::kSleeping, true); });
  scheduler_->preempt_all();
  withdraw_handshake();
  poll_connector();  // what the scheduler half still wants to say, so that no rank hears it asleep
  auto receipt = on_every_rank(call);
  const RankState ranks = ask_ranks();
  if (!ranks.tags_asleep.empty()) {
    scheduler_->drop_transfers();
    pool_->forget_all();
    change_state([&](Lifecycle& lifecycle) {
      lifecycle.set_level(level);
      lifecycle.set_paused(level > 0 || lifecycle.is_paused());
    });
    scheduler_->set_admission(PauseState::kPausedAll);
  }
  settle(ranks);
  publish_handshake(ranks);
  if (receipt) {
    receipt->phases_ms.emplace(receipt->phases_ms.begin(), "drain", drained.count());
    return report(true, std::move(*receipt));
  }
  if (ranks.tags_asleep.empty() && ranks.restored)
    return undo_drain(receipt.error());
  return tl::unexpected(receipt.error());
}

Result<TransitionReport> EngineCore::begin(const ReleaseKvCacheAction&) {
  if (lifecycle_.any_asleep())
    return fail(ErrorCode::kFailedPrecondition,
                "release_kv_cache_memory() requires all executor memory to be resident");
  change_state([](Lifecycle& lifecycle) { lifecycle.begin(EngineState::kSleeping, true); });
  take_inbox();
  if (scheduler_->num_unfinished() > 0 && !lifecycle_.is_paused())
    return undo_drain({ErrorCode::kFailedPrecondition,
                       "release_kv_cache_memory() requires a completed pause first"});
  return give_back(DiscardCall{{kKvCacheTag}}, 0);
}

Result<TransitionReport> EngineCore::begin(const WakeUpAction& wake_up) {
  std::optional<std::vector<MemoryTag>> tags;
  if (wake_up.tags) {
    tags.emplace();
    for (const std::string& name : *wake_up.tags)
      if (name != kScheduling)
        tags->emplace_back(name);
  }
  const bool scheduling_only = tags && tags->empty() && !wake_up.tags->empty();
  const bool was_asleep = lifecycle_.any_asleep();
  const bool was_degraded = current_state() == EngineState::kDegraded;
  MemoryReceipt receipt;
  if (!scheduling_only) {
    if (was_asleep)
      change_state([](Lifecycle& lifecycle) { lifecycle.begin(EngineState::kWaking, false); });
    auto woken = on_every_rank(WakeUpCall{tags});
    if (woken) {
      if (const auto committed = on_every_rank(CommitWakeUpCall{}); !committed)
        woken = tl::unexpected(committed.error());
    }
    const RankState ranks = ask_ranks();
    settle(ranks);
    publish_handshake(ranks);
    if (!woken)
      return tl::unexpected(woken.error());
    receipt = std::move(*woken);
  }
  if (lifecycle_.any_asleep()) {
    const bool mapped_some = !receipt.tags.empty();
    return report(mapped_some, std::move(receipt));
  }
  const bool changed = was_asleep || was_degraded || lifecycle_.is_paused();
  scheduler_->set_admission(PauseState::kUnpaused);
  change_state([](Lifecycle& lifecycle) {
    lifecycle.set_paused(false);
    lifecycle.settle();
  });
  return report(changed, std::move(receipt));
}

Result<TransitionReport> EngineCore::begin(const ResumeAction&) {
  if (lifecycle_.any_asleep())
    return fail(ErrorCode::kFailedPrecondition,
                "The engine is asleep; a resume cannot bring its memory back. Use POST /wake_up.");
  if (current_state() == EngineState::kDegraded)
    return fail(ErrorCode::kFailedPrecondition,
                "The last transition failed; a resume cannot mend it. Use POST /wake_up.");
  if (!lifecycle_.weights_valid())
    return fail(ErrorCode::kFailedPrecondition,
                "The weights were discarded. Load them first: POST /reload_weights.");
  const bool changed = lifecycle_.is_paused();
  scheduler_->set_admission(PauseState::kUnpaused);
  change_state([](Lifecycle& lifecycle) {
    lifecycle.set_paused(false);
    lifecycle.settle();
  });
  return report(changed);
}

Result<TransitionReport> EngineCore::begin(const ReloadWeightsAction&) {
  const auto asleep = lifecycle_.tags_asleep();
  if (std::ranges::find(asleep, kWeightsTag.name()) != asleep.end())
    return fail(ErrorCode::kFailedPrecondition,
                "The weights are asleep. Wake them first: POST /wake_up?tags=weights.");
  if (const auto transfers = scheduler_->transfers(); transfers.loads + transfers.sends > 0)
    return fail(ErrorCode::kFailedPrecondition,
                fmt::format("{} requests are loading KV and {} hold some for peers, all of the "
                            "weights of now. Wait for them, or sleep first: POST /sleep?level=1.",
                            transfers.loads, transfers.sends));
  scheduler_->preempt_all();
  auto receipt = on_every_rank(ReloadWeightsCall{});
  // Keys and values of the old weights must not answer for the new ones.
  if (!lifecycle_.any_asleep())
    (void)pool_->reset_cached();
  const RankState ranks = ask_ranks();
  settle(ranks);
  publish_handshake(ranks);
  if (!receipt)
    return tl::unexpected(receipt.error());
  return report(true, std::move(*receipt));
}

Result<TransitionReport> EngineCore::begin(const ResetPrefixCacheAction& reset) {
  if (reset.reset_running_requests)
    scheduler_->preempt_all();
  const bool external = !reset.reset_external || !connector_ || connector_->reset_cache();
  return report(pool_->reset_cached() && external);
}

// --- ranks ---

// What a sleep's own deadline leaves for peers, if it has one.
std::chrono::milliseconds EngineCore::release_timeout() const {
  const auto* sleep = active_ ? std::get_if<SleepAction>(&active_->action) : nullptr;
  if (sleep == nullptr || !sleep->options.deadline)
    return kReleaseTimeout;
  const auto left = active_->started + *sleep->options.deadline - Clock::now();
  return std::clamp(std::chrono::duration_cast<std::chrono::milliseconds>(left),
                    kLeastReleaseTimeout, kReleaseTimeout);
}

Result<MemoryReceipt> EngineCore::on_every_rank(const RankCall& call) {
  const auto* sleep = active_ ? std::get_if<SleepAction>(&active_->action) : nullptr;
  const TransitionControl control{
      .release_timeout = release_timeout(),
      .force = sleep != nullptr && sleep->options.force,
      .cancelled = active_ ? &active_->cancelled : nullptr,
      .progress = [this](std::string_view phase, std::uint64_t done, std::uint64_t total) {
        const std::lock_guard lock(mutex_);
        status_.transition_phase = phase;
        status_.transition_progress = static_cast<double>(done) / static_cast<double>(total);
      }};
  MemoryReceipt sum;
  Status first;
  for (auto& reply : executor_->collective_rpc(call, control)) {
    if (!reply) {
      keep_first(first, tl::unexpected(reply.error()));
      continue;
    }
    MemoryReceipt& one = reply->receipt;
    for (const auto& [name, tag] : one.tags) {
      MemoryReceipt::Tag& total = sum.tags[name];
      total.unmapped += tag.unmapped;
      total.mapped += tag.mapped;
      total.copied_out += tag.copied_out;
      total.copied_in += tag.copied_in;
      total.backup_kept += tag.backup_kept;
    }
    sum.expected_freed += one.expected_freed;
    sum.measured_freed += one.measured_freed;
    sum.kept.insert(sum.kept.end(), one.kept.begin(), one.kept.end());
    if (sum.phases_ms.empty())
      sum.phases_ms = std::move(one.phases_ms);
  }
  if (!first)
    return tl::unexpected(first.error());
  return sum;
}

RankState EngineCore::ask_ranks() {
  const auto replies = executor_->collective_rpc(ReportStateCall{}, {});
  handshakes_.clear();
  for (const auto& reply : replies)
    handshakes_.push_back(reply ? reply->state.handshake : std::string());
  return fold_states(replies);
}

void EngineCore::settle(const RankState& ranks) {
  change_state([&](Lifecycle& lifecycle) { lifecycle.settle(ranks); });
  const std::lock_guard lock(mutex_);
  status_.memory = ranks.memory;
  const auto generation = [&](const MemoryTag& tag) {
    const auto found = ranks.memory.find(tag.name());
    return found == ranks.memory.end() ? 0 : found->second.generation;
  };
  status_.generation_weights = generation(kWeightsTag);
  status_.generation_kv_cache = generation(kKvCacheTag);
}

TransitionReport EngineCore::report(bool changed, MemoryReceipt receipt) const {
  return {.state = current_state(),
          .level = lifecycle_.level(),
          .tags_asleep = lifecycle_.tags_asleep(),
          .changed = changed,
          .memory = std::move(receipt)};
}

}  // namespace dormouse

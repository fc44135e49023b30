#include "engine/lifecycle.h"

#include <fmt/core.h>

#include <algorithm>

namespace dormouse {

namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names)
    text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

std::string_view to_string(EngineState state) {
  switch (state) {
    case EngineState::kStarting:
      return "starting";
    case EngineState::kLoading:
      return "loading";
    case EngineState::kRunning:
      return "running";
    case EngineState::kPausing:
      return "pausing";
    case EngineState::kPaused:
      return "paused";
    case EngineState::kSleeping:
      return "sleeping";
    case EngineState::kAsleep:
      return "asleep";
    case EngineState::kWaking:
      return "waking";
    case EngineState::kDraining:
      return "draining";
    case EngineState::kDegraded:
      return "degraded";
    case EngineState::kFailed:
      return "failed";
  }
  return "failed";
}

Result<PauseMode> parse_pause_mode(std::string_view name) {
  if (name == "abort")
    return PauseMode::kAbort;
  if (name == "wait")
    return PauseMode::kWait;
  if (name == "keep")
    return PauseMode::kKeep;
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("unknown mode \"{}\"; use abort, wait or keep", name), "mode");
}

Status Lifecycle::admits(Work work) const {
  const auto unavailable = [](std::string message) {
    return fail(ErrorCode::kUnavailable, std::move(message));
  };
  if (failed_)
    return unavailable("The engine has failed: " + cause_);
  if (!loaded_)
    return unavailable("The model is still loading.");
  if (draining_ && work == Work::kRequest)
    return unavailable("The server is shutting down.");
  if (any_asleep())
    return unavailable(
        fmt::format("The engine is asleep (level {}; {}). Wake it with POST /wake_up.", level_,
                    joined(ranks_.tags_asleep)));
  if (!ranks_.restored)
    return unavailable("The engine is degraded: " + cause_ + ". Try POST /wake_up.");
  if (!ranks_.weights_valid)
    return unavailable("The weights were discarded. Load them with POST /reload_weights.");
  if (work == Work::kRequest && gate_closing_)
    return unavailable("The engine is going to sleep.");
  if (work == Work::kStep && paused_)
    return unavailable("The engine is paused.");
  return {};
}

bool Lifecycle::all_asleep() const {
  return any_asleep() && std::ranges::all_of(ranks_.memory, [](const auto& entry) {
           return entry.second.mapped == 0;
         });
}

void Lifecycle::begin_loading() {
  state_ = EngineState::kLoading;
}

void Lifecycle::finish_loading(const RankState& ranks) {
  loaded_ = true;
  settle(ranks);
}

void Lifecycle::set_failed(std::string cause) {
  failed_ = true;
  cause_ = std::move(cause);
  state_ = EngineState::kFailed;
}

void Lifecycle::begin(EngineState transient, bool closes_gate) {
  state_ = transient;
  gate_closing_ = closes_gate;
}

void Lifecycle::settle(const RankState& ranks) {
  ranks_ = ranks;
  settle();
}

void Lifecycle::settle() {
  gate_closing_ = false;
  cause_.clear();
  if (!any_asleep())
    level_ = 0;
  if (failed_)
    state_ = EngineState::kFailed;
  else if (draining_)
    state_ = EngineState::kDraining;
  else if (!ranks_.restored) {
    state_ = EngineState::kDegraded;
    cause_ = "a registration of the memory could not be restored";
  } else if (any_asleep())
    state_ = EngineState::kAsleep;
  else if (!ranks_.weights_valid) {
    state_ = EngineState::kPaused;
    cause_ = "the weights were discarded and not loaded again";
  } else
    state_ = paused_ ? EngineState::kPaused : EngineState::kRunning;
}

void Lifecycle::begin_shutdown() {
  draining_ = true;
  if (!failed_)
    state_ = EngineState::kDraining;
}

RankState fold_states(const std::vector<Result<RankReply>>& replies) {
  RankState all{.restored = true, .weights_valid = true};
  for (const auto& reply : replies) {
    if (!reply)
      continue;
    const RankState& one = reply->state;
    all.restored = all.restored && one.restored;
    all.weights_valid = all.weights_valid && one.weights_valid;
    all.model_hash += one.model_hash;  // each rank has weights of its own
    for (const std::string& tag : one.tags_asleep)
      if (std::ranges::find(all.tags_asleep, tag) == all.tags_asleep.end())
        all.tags_asleep.push_back(tag);
    for (const auto& [tag, usage] : one.memory) {
      TagUsage& sum = all.memory[tag];
      sum.mapped += usage.mapped;
      sum.asleep += usage.asleep;
      sum.backed_up += usage.backed_up;
      sum.leaked += usage.leaked;
      sum.generation = std::max(sum.generation, usage.generation);
      sum.read_only = usage.read_only;
    }
  }
  return all;
}

}  // namespace dormouse

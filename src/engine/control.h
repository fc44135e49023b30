// A control call on its way: what was asked, and the promise of its answer.
#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "dormouse/engine.h"

namespace dormouse {

struct SleepAction {
  SleepOptions options;
};
struct PauseAction {
  PauseMode mode;
  bool clear_cache;
};
struct WakeUpAction {
  std::optional<std::vector<std::string>> tags;
};
struct ResumeAction {};
struct ReleaseKvCacheAction {};
struct ReloadWeightsAction {};
struct ResetPrefixCacheAction {
  bool reset_running_requests;
  bool reset_external;
};

using ControlAction =
    std::variant<SleepAction, PauseAction, WakeUpAction, ResumeAction, ReleaseKvCacheAction,
                 ReloadWeightsAction, ResetPrefixCacheAction>;

struct Control {
  explicit Control(ControlAction wanted) : action(std::move(wanted)) {}

  const ControlAction action;
  std::promise<Result<TransitionReport>> answer;
  std::atomic<bool> cancelled = false;
  std::chrono::steady_clock::time_point started = {};
  bool was_paused = false;  // before this call

  // A wake-up or a shutdown cuts these short while they still prepare.
  bool is_sleep() const {
    const auto* sleep = std::get_if<SleepAction>(&action);
    return sleep && sleep->options.level > 0;
  }
};

}  // namespace dormouse

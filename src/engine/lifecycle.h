// The engine's state, and the one predicate that says whether work is admitted.
//
// Facts come in (what the ranks report, what a caller asked for); the state is derived from them.
// See docs/lifecycle.md.
//
// Threads: none of its own; the engine guards it with its lock.
#pragma once

#include <string>
#include <vector>

#include "dormouse/engine.h"
#include "protocol/rank_call.h"

namespace dormouse {

class Lifecycle {
 public:
  enum class Work {
    kRequest,  // a new request may be accepted: now or, while only paused, after the pause
    kStep,     // the model may run
  };
  // The one predicate. Asked by the front door and by the loop.
  Status admits(Work work) const;

  EngineState state() const { return state_; }
  const std::string& cause() const { return cause_; }
  int level() const { return level_; }
  const std::vector<std::string>& tags_asleep() const { return ranks_.tags_asleep; }
  bool weights_valid() const { return ranks_.weights_valid; }
  bool any_asleep() const { return !ranks_.tags_asleep.empty(); }
  bool all_asleep() const;  // and there is something
  bool is_paused() const { return paused_; }
  bool is_sleeping() const { return paused_ || any_asleep() || state_ == EngineState::kDegraded; }
  bool is_loaded() const { return loaded_; }

  void begin_loading();
  void finish_loading(const RankState& ranks);
  void set_failed(std::string cause);

  // A transition starts; `closes_gate`: from now on new requests are refused, not queued.
  void begin(EngineState transient, bool closes_gate);
  // A transition is over: derives the state from what the ranks report.
  void settle(const RankState& ranks);
  void settle();

  void set_paused(bool paused) { paused_ = paused; }
  void set_level(int level) { level_ = level; }
  void begin_shutdown();

 private:
  EngineState state_ = EngineState::kStarting;
  std::string cause_;
  bool loaded_ = false;
  bool failed_ = false;
  bool draining_ = false;
  bool paused_ = false;
  bool gate_closing_ = false;
  int level_ = 0;
  RankState ranks_;
};

// The union of what the ranks say: asleep if any is, valid and restored only if all are.
RankState fold_states(const std::vector<Result<RankReply>>& replies);

}  // namespace dormouse

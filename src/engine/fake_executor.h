// An executor of several ranks that do as they are told: for what one real rank cannot show.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>

#include "executor/executor.h"

namespace dormouse::testing {

class FakeExecutor final : public Executor {
 public:
  struct Rank {
    RankState state{.weights_valid = true};
    // What the next calls of a kind answer instead of succeeding.
    std::deque<Error> sleep_errors;
    std::deque<Error> wake_up_errors;
    bool commits_before_failing = false;  // a failing sleep has unmapped all the same
    std::vector<std::string> calls;
  };
  // Shared with the test: the engine owns the executor and may outlive the test's use of it.
  struct Shared {
    std::vector<Rank> ranks;
    ModelFacts facts;
    std::uint64_t steps = 0;
    std::function<void()> on_sleep;
  };

  explicit FakeExecutor(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  Result<ModelFacts> load(const LoadControl&) override { return shared_->facts; }

  std::vector<Result<RankReply>> collective_rpc(const RankCall& call,
                                                const TransitionControl&) override {
    std::vector<Result<RankReply>> replies;
    if (std::holds_alternative<SleepCall>(call) && shared_->on_sleep)
      shared_->on_sleep();
    for (Rank& rank : shared_->ranks)
      replies.push_back(answer(rank, call));
    return replies;
  }

  Result<StepResult> execute(const StepPlan& plan, std::span<const TokenId>) override {
    ++shared_->steps;
    StepResult result{.step = plan.step};
    for (const ScheduledSequence& entry : plan.sequences)
      if (entry.samples)
        result.sampled.push_back({entry.id, {.token = 5}});
    return result;
  }

 private:
  static Result<RankReply> fail_next(std::deque<Error>& errors) {
    const Error error = errors.front();
    errors.pop_front();
    return tl::unexpected(error);
  }

  static void fall_asleep(Rank& rank) { rank.state.tags_asleep = {"kv_cache", "weights"}; }

  static Result<RankReply> answer(Rank& rank, const RankCall& call) {
    if (std::holds_alternative<SleepCall>(call)) {
      rank.calls.push_back("sleep");
      if (rank.sleep_errors.empty() || rank.commits_before_failing)
        fall_asleep(rank);
      if (!rank.sleep_errors.empty())
        return fail_next(rank.sleep_errors);
    } else if (std::holds_alternative<WakeUpCall>(call)) {
      rank.calls.push_back("wake_up");
      if (!rank.wake_up_errors.empty())
        return fail_next(rank.wake_up_errors);
      rank.state.tags_asleep.clear();
      rank.state.restored = true;
    } else if (std::holds_alternative<CommitWakeUpCall>(call)) {
      rank.calls.push_back("commit");
    }
    return RankReply{.receipt = {}, .state = rank.state};
  }

  std::shared_ptr<Shared> shared_;
};

}  // namespace dormouse::testing

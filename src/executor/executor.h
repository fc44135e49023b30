// All ranks as one: a call goes to every rank, and every rank's answer comes back.
//
// Threads: one, the engine's. Order: load before anything else.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "protocol/rank_call.h"
#include "protocol/step.h"
#include "worker/worker.h"

namespace dormouse {

class Executor {
 public:
  virtual ~Executor() = default;

  virtual Result<ModelFacts> load(const LoadControl& control) = 0;

  // One result for each rank, in rank order, always: a rank that failed or cannot be reached has an
  // error in its place, and no answer is left over for the next call.
  virtual std::vector<Result<RankReply>> collective_rpc(const RankCall& call,
                                                        const TransitionControl& control) = 0;

  // Runs a step on every rank; the answer of the one that samples.
  virtual Result<StepResult> execute(const StepPlan& plan, std::span<const TokenId> end_tokens) = 0;
};

}  // namespace dormouse

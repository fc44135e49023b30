#include "executor/uniproc_executor.h"

namespace dormouse {

UniprocExecutor::UniprocExecutor(const EngineConfig& config)
    : copier_(thread_count(config)), worker_(config, driver_, copier_) {}

Result<ModelFacts> UniprocExecutor::load(const LoadControl& control) {
  return worker_.load(control);
}

std::vector<Result<RankReply>> UniprocExecutor::collective_rpc(const RankCall& call,
                                                               const TransitionControl& control) {
  std::vector<Result<RankReply>> replies;
  replies.push_back(worker_.call(call, control));
  return replies;
}

Result<StepResult> UniprocExecutor::execute(const StepPlan& plan,
                                            std::span<const TokenId> end_tokens) {
  return worker_.execute(plan, end_tokens);
}

}  // namespace dormouse

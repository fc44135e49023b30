// One rank in the engine's own process, on host memory.
#pragma once

#include "device/host/host_copier.h"
#include "device/host/host_vmm_driver.h"
#include "executor/executor.h"

namespace dormouse {

class UniprocExecutor final : public Executor {
 public:
  explicit UniprocExecutor(const EngineConfig& config);

  Result<ModelFacts> load(const LoadControl& control) override;
  std::vector<Result<RankReply>> collective_rpc(const RankCall& call,
                                                const TransitionControl& control) override;
  Result<StepResult> execute(const StepPlan& plan, std::span<const TokenId> end_tokens) override;

 private:
  HostVmmDriver driver_;
  HostCopier copier_;
  Worker worker_;
};

}  // namespace dormouse

// The engine's part in KV transfer: it carries bytes between the two halves of the connector.
#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "engine/engine_core.h"
#include "kv_connector/registry.h"
#include "protocol/connector_stats.h"

namespace dormouse {

Status EngineCore::start_connector() {
  if (config_.kv_transfer.kv_connector.empty())
    return {};
  DM_TRY_ASSIGN(const KvConnectorClass found, find_kv_connector(config_.kv_transfer));
  const RankState ranks = ask_ranks();
  const KvConnectorContext context{.config = config_.kv_transfer,
                                   .incarnation = config_.incarnation,
                                   .model_hash = ranks.model_hash,
                                   .shape = facts_.kv_shape,
                                   .num_blocks = facts_.num_blocks,
                                   .world_size = static_cast<std::uint32_t>(facts_.world_size)};
  model_hash_ = ranks.model_hash;
  DM_TRY_ASSIGN(connector_, found.make_scheduler(context));
  log(LogLevel::kInfo, "engine", "kv_connector={} engine_id={} incarnation={}",
      config_.kv_transfer.kv_connector, config_.kv_transfer.engine_id, config_.incarnation);
  return {};
}

// A step that computes nothing, also while the memory is asleep.
void EngineCore::poll_connector() {
  if (!connector_ || !scheduler_)
    return;
  const StepPlan plan = scheduler_->plan_poll();
  const auto result = executor_->execute(plan, end_tokens_);
  if (!result)
    return deliver(scheduler_->fail_step(plan, result.error()));
  take_connector_outputs(*result);
  deliver(scheduler_->complete(plan, *result));
}

void EngineCore::take_connector_outputs(const StepResult& result) {
  KvConnectorStats sum;
  for (const KvConnectorOutput& output : result.connector)
    add_stats(sum, output.stats);
  if (sum.empty())
    return;
  const std::lock_guard lock(mutex_);
  worker_stats_ = std::move(sum);
}

// Peers that hold older data meet another generation and ask again.
void EngineCore::publish_handshake(const RankState& ranks) {
  if (!connector_)
    return;
  if (ranks.model_hash != model_hash_)
    connector_->set_model_hash(model_hash_ = ranks.model_hash);
  const bool complete = ranks.restored && std::ranges::none_of(handshakes_, &std::string::empty);
  connector_->set_xfer_handshake_metadata(complete ? handshakes_ : std::vector<std::string>());
}

void EngineCore::withdraw_handshake() {
  if (connector_)
    connector_->set_xfer_handshake_metadata({});
}

}  // namespace dormouse

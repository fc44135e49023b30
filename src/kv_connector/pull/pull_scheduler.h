// The scheduler half of a connector that pulls: which requests leave blocks for others, which want
// the blocks of others, and what the workers shall do about it.
//
// Owns:    the socket at which peers ask who this engine is.
// Threads: the engine's own; check_request from any.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "kv_connector/pull/meta_service.h"
#include "kv_connector/pull/pull_config.h"
#include "kv_connector/pull/transfer_params.h"

namespace dormouse::pull {

class PullScheduler final : public SchedulerConnector {
 public:
  static Result<std::unique_ptr<PullScheduler>> create(const KvConnectorContext& context);

  Status check_request(const Request& request) const override;
  void on_new_request(const KvRequest& request) override;
  std::optional<KvMatch> get_num_new_matched_tokens(const KvRequest& request,
                                                    std::uint32_t num_computed) override;
  void update_state_after_alloc(const KvRequest& request, std::span<const BlockId> blocks,
                                std::uint32_t num_external) override;
  std::string build_connector_meta() override;
  bool has_pending_work() const override;
  void update_connector_output(const KvConnectorOutput& output) override;
  KvRequestFinished request_finished(const KvRequest& request,
                                     std::span<const BlockId> blocks) override;
  void set_xfer_handshake_metadata(const std::vector<std::string>& by_rank) override;
  void set_model_hash(const std::string& model_hash) override;
  KvConnectorStats get_kv_connector_stats() const override;
  void shutdown() override;

 private:
  // A request whose prompt another engine has computed. Forgotten once it needs nothing more.
  struct Load {
    RemoteReference from;
    bool started = false;
  };

  PullScheduler(const KvConnectorContext& context, PullConfig config);
  ParamBounds bounds() const { return {context_.shape.block_size, context_.num_blocks}; }
  void publish();
  KvRequestFinished leave_blocks(const KvRequest& request, std::span<const BlockId> blocks);
  bool may_leave(std::size_t blocks) const;

  KvConnectorContext context_;  // its model hash follows the weights
  const PullConfig config_;
  std::unordered_map<RequestId, Load> loads_;
  std::unordered_map<RequestId, std::size_t> left_;  // blocks that leases hold
  std::uint64_t declined_ = 0;
  Orders orders_;
  std::vector<std::string> ranks_;        // handshake metadata; empty while unmapped
  std::uint64_t generation_ = 0;          // that it names
  std::unique_ptr<MetaService> service_;  // null if this engine only consumes
};

}  // namespace dormouse::pull

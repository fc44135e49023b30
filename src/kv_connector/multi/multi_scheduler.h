// Scheduler half of the MultiConnector: loads from the first child that has something, stores with
// all, and keeps apart what each child says.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "dormouse/kv_connector.h"
#include "kv_connector/multi/multi_messages.h"

namespace dormouse {

class MultiScheduler final : public SchedulerConnector {
 public:
  using Children = std::vector<std::unique_ptr<SchedulerConnector>>;

  static Result<std::unique_ptr<MultiScheduler>> create(const KvConnectorContext& context);
  explicit MultiScheduler(Children children) : children_(std::move(children)) {}

  Status check_request(const Request& request) const override;
  void on_new_request(const KvRequest& request) override;
  std::optional<KvMatch> get_num_new_matched_tokens(const KvRequest& request,
                                                    std::uint32_t num_computed) override;
  void update_state_after_alloc(const KvRequest& request, std::span<const BlockId> blocks,
                                std::uint32_t num_external) override;
  std::string build_connector_meta() override;
  bool has_pending_work() const override;
  void update_connector_output(const KvConnectorOutput& output) override;
  // Members of one name from several children are a mistake in the configuration: it is logged and
  // counted, and the first child's member stays.
  KvRequestFinished request_finished(const KvRequest& request,
                                     std::span<const BlockId> blocks) override;
  void set_xfer_handshake_metadata(const std::vector<std::string>& by_rank) override;
  void set_model_hash(const std::string& model_hash) override;
  bool reset_cache() override;
  KvConnectorStats get_kv_connector_stats() const override;
  void shutdown() override;

 private:
  const Children children_;
  std::unordered_map<RequestId, std::size_t> loads_from_;  // until its blocks are allocated
  std::vector<MultiHolders> holders_;                      // to tell the workers
  std::uint64_t key_clashes_ = 0;
};

}  // namespace dormouse

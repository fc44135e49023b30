// Worker half of the MultiConnector: forwards every call to every child and unites what they say.
//
// A request's blocks are reported as sent once every child that holds them has said so. A release
// goes to the children in order; when one fails, those that had released are restored in reverse.
// Whether a configuration follows the mapping is a matter of its class (multi_config.h); a child
// that does not follow is not called.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "dormouse/kv_connector.h"

namespace dormouse {

class MultiWorker final : public WorkerConnector, public FollowsMapping {
 public:
  using Children = std::vector<std::unique_ptr<WorkerConnector>>;

  static Result<std::unique_ptr<MultiWorker>> create(const KvConnectorContext& context);
  explicit MultiWorker(Children children);

  Status register_kv_caches(const KvCaches& caches) override;
  void bind_connector_metadata(const std::string& metadata) override;
  void clear_connector_metadata() override;
  void handle_preemptions() override;
  void start_load_kv() override;
  void wait_for_layer_load(std::uint32_t layer) override;
  void save_kv_layer(std::uint32_t layer) override;
  void wait_for_save() override;
  void get_finished(const RequestIds& finished, KvConnectorOutput& output) override;
  void get_block_ids_with_load_errors(KvConnectorOutput& output) override;
  std::string build_connector_worker_meta() override;
  std::string get_handshake_metadata() override;
  KvConnectorStats get_kv_connector_stats() const override;
  void shutdown() override;

  Status release_kv_caches(Unmapping& unmapping) override;
  Status restore_kv_caches(const KvCaches& caches) override;

 private:
  bool is_last_holder(RequestId request);

  const Children children_;
  std::vector<FollowsMapping*> followers_;  // those of children_ that are, in order
  KvCaches caches_;
  std::vector<KvConnectorOutput> outputs_;                // by child, since the last metadata
  std::unordered_map<RequestId, std::uint32_t> holders_;  // where more than one child holds blocks
};

}  // namespace dormouse

// Worker half of the OffloadingConnector: says to its transfers what the scheduler half wants, and
// the other way round.
//
// A release drops the stores and fails the loads that are queued, cuts short those under way, and
// waits for the copies in flight. It restores nothing but the permission to copy. The tiers survive
// the sleep; the host tier's bytes stand in the receipt. `force` changes nothing: memory that is
// being copied cannot go.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kv_connector/offload/offload_transfers.h"

namespace dormouse {

class OffloadWorker final : public WorkerConnector, public FollowsMapping {
 public:
  static Result<std::unique_ptr<OffloadWorker>> create(const KvConnectorContext& context);
  static Result<std::unique_ptr<OffloadWorker>> create(const KvConnectorContext& context,
                                                       OffloadTransfers::Steps steps);
  explicit OffloadWorker(std::shared_ptr<OffloadTransfers> transfers)
      : transfers_(std::move(transfers)) {}
  ~OffloadWorker() override { shutdown(); }

  Status register_kv_caches(const KvCaches& caches) override;
  void bind_connector_metadata(const std::string& metadata) override;
  void clear_connector_metadata() override { bound_.clear(); }
  void start_load_kv() override;
  void get_finished(const RequestIds& finished, KvConnectorOutput& output) override;
  void get_block_ids_with_load_errors(KvConnectorOutput& output) override;
  std::string build_connector_worker_meta() override;
  // The generation of the mapping, in decimal: jobs that name blocks carry it.
  std::string get_handshake_metadata() override { return transfers_->generation(); }
  KvConnectorStats get_kv_connector_stats() const override;
  void shutdown() override { transfers_->stop(); }

  Status release_kv_caches(Unmapping& unmapping) override;
  Status restore_kv_caches(const KvCaches& caches) override;

 private:
  const std::shared_ptr<OffloadTransfers> transfers_;
  std::vector<OffloadJob> bound_;
  OffloadTransfers::Outcome told_;  // what get_finished has not told of this step
};

}  // namespace dormouse

// Scheduler half of the OffloadingConnector: decides what is stored where and what comes back.
//
// A request's full blocks are stored when it ends, and loaded when one with the same beginning
// comes. Nothing is stored of a request that failed, that spans a change of weights, or whose load
// is still under way.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "kv_connector/offload/disk_lookup.h"
#include "kv_connector/offload/host_tier.h"
#include "kv_connector/offload/offload_config.h"
#include "kv_connector/offload/offload_jobs.h"

namespace dormouse {

class OffloadScheduler final : public SchedulerConnector {
 public:
  static Result<std::unique_ptr<OffloadScheduler>> create(const KvConnectorContext& context);

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
  // Forgets the host tier. Files stay: they are named by what they hold.
  bool reset_cache() override;
  KvConnectorStats get_kv_connector_stats() const override;

 private:
  struct Known {
    std::vector<std::string> keys;  // of its blocks, as far as they were asked for
    std::uint32_t loads = 0;        // under way
    bool old_weights = false;       // some of its blocks may be of the weights before
  };
  struct Flight {
    OffloadJob job;
    std::uint32_t reports = 0;  // of ranks that ended it
    std::uint32_t done = 0;     // blocks that every one of these copied
  };

  OffloadScheduler(const KvConnectorContext& context, OffloadConfig config);

  const std::vector<std::string>& keys_of(Known& known, const KvRequest& request,
                                          std::size_t count);
  std::optional<DiskLookup::Keys> find_on_disk(RequestId request,
                                               std::span<const std::string> keys);
  void submit(OffloadJob job);
  void job_ended(const OffloadReport::Ended& ended);
  void store_ended(const Flight& flight);
  std::vector<OffloadBlock> blocks_to_store(const std::vector<std::string>& keys,
                                            std::span<const BlockId> blocks);

  const OffloadConfig config_;
  const KvShape shape_;
  const std::uint32_t world_size_;
  std::string model_hash_;
  HostTier tier_;
  std::unique_ptr<DiskLookup> disk_;  // null: no disk tier
  std::vector<std::string> generations_;
  std::unordered_map<RequestId, Known> known_;
  std::unordered_map<std::uint64_t, Flight> flights_;
  std::vector<OffloadJob> queue_;        // told with the next metadata
  std::unordered_set<std::string> bad_;  // files that are of no use and cannot be deleted
  std::uint64_t next_job_ = 1;
  std::uint64_t hits_ = 0;
  std::uint64_t misses_ = 0;
};

}  // namespace dormouse

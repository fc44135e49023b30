// Worker half of the OffloadingConnector: copies blocks between the cache and the tiers.
//
// Threads of its own copy, job by job and block by block; a block touches the cache for the time of
// one memcpy, never while a file is read or written. A job whose generation is not that of the
// mapping never touches the cache: a store is dropped, a load fails.
//
// A release drops the stores and fails the loads that are queued, cuts short those under way, and
// waits for the copies in flight. It restores nothing but the permission to copy. The tiers survive
// the sleep. `force` changes nothing: memory that is being copied cannot go.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "kv_connector/offload/disk_tier.h"
#include "kv_connector/offload/offload_config.h"
#include "kv_connector/offload/offload_jobs.h"
#include "kv_connector/offload/slot_memory.h"

namespace dormouse {

class OffloadWorker final : public WorkerConnector, public FollowsMapping {
 public:
  using Copy = std::function<void(std::span<std::byte> to, std::span<const std::byte> from)>;

  static Result<std::unique_ptr<OffloadWorker>> create(const KvConnectorContext& context);
  // `copy` instead of memcpy between cache and host memory, for tests.
  static Result<std::unique_ptr<OffloadWorker>> create(const KvConnectorContext& context,
                                                       Copy copy);
  ~OffloadWorker() override { shutdown(); }

  Status register_kv_caches(const KvCaches& caches) override;
  void bind_connector_metadata(const std::string& metadata) override;
  void clear_connector_metadata() override { bound_.clear(); }
  void start_load_kv() override;
  void get_finished(const RequestIds& finished, KvConnectorOutput& output) override;
  void get_block_ids_with_load_errors(KvConnectorOutput& output) override;
  std::string build_connector_worker_meta() override;
  // The generation of the mapping, in decimal: jobs that name blocks carry it.
  std::string get_handshake_metadata() override;
  KvConnectorStats get_kv_connector_stats() const override;
  void shutdown() override;

  Status release_kv_caches(Unmapping& unmapping) override;
  Status restore_kv_caches(const KvCaches& caches) override;

 private:
  struct Write {
    std::string key;
    std::uint32_t slot = 0;
  };

  OffloadWorker(const KvConnectorContext& context, SlotMemory slots, Copy copy);

  void work();
  void run(const OffloadJob& job, std::span<std::byte> staging);
  Status move_block(const OffloadJob& job, const OffloadBlock& block, std::span<std::byte> staging);
  Status copy_if_mapped(const OffloadJob& job, std::span<std::byte> to,
                        std::span<const std::byte> from);
  Status read_file(const std::string& key, std::span<std::byte> staging);
  Status verify_slot(const OffloadBlock& block);
  void finish(const OffloadJob& job, std::uint32_t done, const Status& status);
  bool is_current(const OffloadJob& job) const;

  const std::uint32_t rank_;
  const std::uint32_t num_blocks_;
  const bool verify_;
  std::uint32_t num_threads_ = 1;
  const SlotMemory slots_;
  const Copy copy_;
  std::unique_ptr<DiskTier> disk_;  // null: none
  std::vector<Hash128> sums_;       // of slots, with verify_kv
  std::vector<OffloadJob> bound_;
  KvConnectorOutput told_;  // failures of the loads that get_finished told of

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable work_;
  std::condition_variable idle_;
  bool stopping_ = false;
  bool mapped_ = false;
  std::span<std::byte> cache_;
  std::uint64_t generation_ = 0;
  std::uint32_t copying_ = 0;  // copies that touch the cache now
  std::deque<OffloadJob> jobs_;
  std::deque<Write> writes_;  // when no job waits
  KvConnectorOutput output_;
  OffloadReport report_;
  OffloadReport report_told_;  // goes up with what get_finished said
  std::uint64_t stored_ = 0;
  std::uint64_t loaded_ = 0;
  std::uint64_t dropped_ = 0;
  std::uint64_t slots_touched_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace dormouse

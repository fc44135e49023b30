// Worker half of the OffloadingConnector: copies blocks between the cache and the tiers.
//
// Threads of its own copy, job by job and block by block; a block touches the cache for the time of
// one memcpy, never while a file is read or written. Jobs that need files have threads apart, so
// that a slow disk delays nothing else. A job whose generation is not that of the mapping never
// touches the cache: a store is dropped, a load fails; so does one that is not done in time, also
// if the file system never answers.
//
// A release drops the stores and fails the loads that are queued, cuts short those under way, and
// waits for the copies in flight. It restores nothing but the permission to copy. The tiers survive
// the sleep. `force` changes nothing: memory that is being copied cannot go.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
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
  // What a test may hold up.
  struct Steps {
    // Between cache and host memory.
    std::function<void(std::span<std::byte> to, std::span<const std::byte> from)> copy;
    std::function<void()> before_read;  // of a file
  };

  static Result<std::unique_ptr<OffloadWorker>> create(const KvConnectorContext& context);
  static Result<std::unique_ptr<OffloadWorker>> create(const KvConnectorContext& context,
                                                       Steps steps);
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

  struct Task {
    OffloadJob job;
    std::chrono::steady_clock::time_point deadline;
    std::uint32_t done = 0;  // blocks, from the first
    bool copying = false;    // touches the cache now
  };
  using Queue = std::deque<std::shared_ptr<Task>>;

  OffloadWorker(const KvConnectorContext& context, const OffloadConfig& config, SlotMemory slots,
                Steps steps);

  void serve(Queue& queue);
  void write_next(std::unique_lock<std::mutex>& lock);
  void run(const std::shared_ptr<Task>& task, std::span<std::byte> staging);
  Status move_block(const std::shared_ptr<Task>& task, const OffloadBlock& block,
                    std::span<std::byte> staging);
  Status begin_copy(const std::shared_ptr<Task>& task);
  Status copy_block(const OffloadJob& job, const OffloadBlock& block, std::span<std::byte> staging);
  void end_copy(Task& task, bool copied);
  Status read_file(const std::string& key, std::span<std::byte> staging);
  Status verify_slot(const OffloadBlock& block);
  // With mutex_ held:
  void end(const std::shared_ptr<Task>& task, const Status& status);
  void report_store(const Task& task);
  void end_overdue();
  Status too_late() const;
  bool is_current(const OffloadJob& job) const;

  const std::uint32_t rank_;
  const std::uint32_t num_blocks_;
  const bool verify_;
  const std::uint32_t num_threads_;
  const std::chrono::steady_clock::duration timeout_;
  const SlotMemory slots_;
  const Steps steps_;
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
  std::uint32_t copying_ = 0;              // copies that touch the cache now
  std::set<std::shared_ptr<Task>> tasks_;  // that have not ended
  Queue memory_tasks_;
  Queue file_tasks_;
  std::deque<Write> writes_;  // when no task with files waits
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

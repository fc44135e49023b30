// The transfers of one rank's OffloadingConnector, on threads of their own: job by job and block by
// block; a block touches the cache for the time of one memcpy (and a checksum, with `verify`),
// never while a file is read or written.
//
// Every job ends once: when it is done, when its generation is not that of the mapping, at its
// deadline, or when the cache is released; what has ended is not copied any more, and what is
// being copied has not ended. Jobs that need files have threads apart, so that a slow disk delays
// nothing else; while the file system does not answer at all, such jobs fail at once.
//
// Threads: the rank's, but for the jobs themselves. Held by its threads too: stop() does not wait
// for a file system that never answers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "kv_connector/offload/disk_tier.h"
#include "kv_connector/offload/offload_jobs.h"
#include "kv_connector/offload/slot_memory.h"

namespace dormouse {

class OffloadTransfers : public std::enable_shared_from_this<OffloadTransfers> {
 public:
  // What a test may hold up.
  struct Steps {
    // Between cache and host memory.
    std::function<void(std::span<std::byte> to, std::span<const std::byte> from)> copy;
    std::function<void()> before_file;  // is read or written
  };
  struct Options {
    std::uint32_t rank = 0;
    std::uint32_t num_blocks = 0;
    std::uint32_t num_threads = 1;                  // as many again for files
    bool verify = false;                            // a checksum of every slot
    std::chrono::steady_clock::duration timeout{};  // of a job
  };
  struct Counters {
    std::uint64_t stored = 0;
    std::uint64_t loaded = 0;
    std::uint64_t dropped = 0;    // blocks that were not stored
    std::uint64_t unwritten = 0;  // of those stored, not written to a file in time
    std::uint64_t host_bytes = 0;
  };
  // What has ended since it was last taken.
  struct Outcome {
    KvConnectorOutput output;
    OffloadReport report;
  };

  // `disk` may be null.
  OffloadTransfers(Options options, SlotMemory slots, std::unique_ptr<DiskTier> disk, Steps steps);

  void start();
  void stop();

  void set_mapping(std::span<std::byte> cache, std::uint64_t generation);
  Status release(const Unmapping& unmapping);
  std::string generation() const;  // as jobs state it

  void submit(OffloadJob job);
  Outcome take();

  Counters counters() const;
  const DiskTier* disk() const { return disk_.get(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Task {
    OffloadJob job;
    Clock::time_point deadline;
    std::uint32_t done = 0;  // blocks, from the first
    bool copying = false;    // touches the cache now
  };
  using TaskPtr = std::shared_ptr<Task>;
  // Threads that serve one queue.
  struct Lane {
    std::deque<TaskPtr> tasks;
    std::multiset<Clock::time_point> busy;  // since when each thread that does something does it
  };
  struct Write {
    std::string key;
    std::uint32_t slot = 0;
    Clock::time_point deadline;
  };

  void serve(Lane& lane);
  void run(const TaskPtr& task, std::span<std::byte> staging);
  Status move_block(const TaskPtr& task, const OffloadBlock& block, std::span<std::byte> staging);
  Status begin_copy(const TaskPtr& task);
  Status copy_block(const OffloadJob& job, const OffloadBlock& block, std::span<std::byte> staging);
  void end_copy(Task& task, bool copied);
  Status read_file(const std::string& key, std::span<std::byte> staging);
  Status verify_slot(const OffloadBlock& block);
  // With mutex_ held:
  bool is_current(const OffloadJob& job) const;
  Status check_can_begin(const OffloadJob& job) const;
  bool files_answer() const;
  void drop_overdue_writes();
  void end(const TaskPtr& task, const Status& status);
  void report_store(const Task& task);
  Status too_late() const;

  const Options options_;
  const SlotMemory slots_;
  const std::unique_ptr<DiskTier> disk_;
  const Steps steps_;
  std::vector<Hash128> sums_;  // of slots, with `verify`

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  bool stopping_ = false;
  bool mapped_ = false;
  std::span<std::byte> cache_;
  std::uint64_t generation_ = 0;
  std::uint32_t copying_ = 0;   // copies that touch the cache now
  std::uint32_t threads_ = 0;   // that run
  std::vector<TaskPtr> tasks_;  // that have not ended, the oldest first
  Lane memory_;
  Lane files_;
  std::deque<Write> writes_;  // when no task with files waits
  Outcome outcome_;
  Counters counters_;
};

}  // namespace dormouse

// Loads blocks from other engines, on threads of its own: the queue of orders and their outcomes.
//
// Every load has one deadline and exactly one outcome, which take_outcomes tells once. What it
// brought counts only when each owner has confirmed its lease; otherwise all its blocks are invalid
// and the lease is given back. Nothing is written into the cache once `settle` has returned true.
//
// Owns:    its threads.
// Threads: load, give_back, cancel, cancel_all, wait_idle, settle, take_outcomes, forget_outcomes
//          and the destructor from the rank's thread; counters from any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "dormouse/memory.h"
#include "kv_connector/pull/heartbeats.h"
#include "kv_connector/pull/peer.h"
#include "kv_connector/pull/pull_from.h"
#include "kv_connector/pull/transfer_stats.h"

namespace dormouse::pull {

class Puller {
 public:
  struct Options {
    PullTarget target;  // where the cache is, whether mapped or not
    Clock::duration timeout{};
    std::uint32_t threads = 1;
  };
  // `agent`, `peers` and `heartbeats` outlive this object.
  Puller(Options options, TransferAgent& agent, PeerTable& peers, Heartbeats& heartbeats);
  ~Puller();

  void load(PullOrder order);
  // Tells the owner that these blocks are not wanted.
  void give_back(ReferenceOrder order);
  void cancel(RequestId request);
  void cancel_all();
  // Until nothing is under way; else what `may_wait` says.
  Status wait_idle(const Unmapping& unmapping) const;
  // Until nobody reads into the cache or maps a peer's; else what `may_wait` says. After cancel_all
  // nobody begins to.
  Status settle(const Unmapping& unmapping) const;

  struct Outcome {
    RequestId request = 0;
    std::vector<BlockId> invalid_blocks;
    std::string failure;  // empty: it went well, or was cancelled
  };
  std::vector<Outcome> take_outcomes();
  // Loads into a mapping that is gone are nobody's any more.
  void forget_outcomes();

  struct Counters {
    std::uint64_t completed = 0;  // loads that ended well
    std::uint64_t tokens = 0;
    std::uint64_t blocks = 0;
    std::uint64_t failed = 0;
    std::uint64_t mismatches = 0;  // of a checksum
    std::uint64_t under_way = 0;
    std::uint64_t unsent = 0;  // notices to owners that could not be sent
    TransferStats transfers = {};
  };
  Counters counters() const;

 private:
  struct Job {
    PullOrder order;
    bool loads = true;             // false: gives back
    bool wanted = true;            // its outcome
    Time deadline;                 // of a load
    std::set<std::uint32_t> done;  // ranks that confirmed: they know nothing more of the lease
    std::atomic<bool> cancelled = false;
    bool taken = false;  // by a thread
  };
  void submit(std::shared_ptr<Job> job);
  void cancel(Job& job);
  void work();
  std::shared_ptr<Job> next_job() const;
  Outcome outcome_of(const Job& job, const Status& loaded);

  Status load(Job& job);
  PullAttempt attempt(Job& job);
  PullAttempt pull_rank(Job& job, Peer& peer, const RankMetadata& owner);
  bool begin_reading(const Job& job);
  void end_reading(const PullAttempt& attempt);
  bool reads_from(const RankMetadata& owner) const;
  bool tell_release(const Job& job, bool dial);

  const Options options_;
  TransferAgent& agent_;
  PeerTable& peers_;
  Heartbeats& heartbeats_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<std::shared_ptr<Job>> jobs_;  // in order; those taken stay until they end
  std::vector<Outcome> outcomes_;
  std::size_t reading_ = 0;
  bool stopping_ = false;
  Counters counters_;
  std::vector<std::thread> threads_;
};

}  // namespace dormouse::pull

// Loads blocks from other engines, on threads of its own.
//
// Every load has one deadline and exactly one outcome, which take_outcomes tells once. What it
// brought counts only when each owner has confirmed its lease; otherwise all its blocks are invalid
// and the lease is given back. Nothing is written into the cache once `settle` has returned true.
//
// Threads: submit, cancel, settle, take_outcomes and the destructor from the rank's thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kv_connector/pull/heartbeats.h"
#include "kv_connector/pull/messages.h"
#include "kv_connector/pull/peer.h"
#include "kv_connector/pull/read_plan.h"
#include "kv_connector/pull/transfer_stats.h"

namespace dormouse::pull {

class Puller {
 public:
  struct Options {
    KvShape shape;
    std::uint32_t num_blocks = 0;
    Consumer self;  // this rank, and of how many
    Clock::duration timeout{};
    std::uint32_t threads = 1;
    bool verify = false;
  };
  // `agent`, `peers` and `heartbeats` outlive this object.
  Puller(Options options, TransferAgent& agent, PeerTable& peers, Heartbeats& heartbeats);
  ~Puller();

  void set_cache(std::span<std::byte> bytes);

  void load(PullOrder order);
  // Tells the owner that these blocks are not wanted.
  void give_back(ReferenceOrder order);
  void cancel(RequestId request);
  void cancel_all();
  // Waits until nothing is under way; false at the deadline.
  bool wait_idle(Time deadline);
  // Waits until nobody reads into the cache; false at the deadline. After cancel_all nobody begins.
  bool settle(Time deadline, const std::atomic<bool>* cancelled);

  struct Outcome {
    RequestId request = 0;
    std::vector<BlockId> invalid_blocks;
    std::string failure;  // empty: it went well, or was cancelled
  };
  std::vector<Outcome> take_outcomes();
  // Loads into a mapping that is gone are nobody's any more.
  void forget_outcomes();

  struct Counters {
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
    bool loads = true;   // false: gives back
    bool wanted = true;  // its outcome
    Time began = Clock::now();
    Time deadline;
    std::atomic<bool> cancelled = false;
    bool taken = false;  // by a thread
  };
  // What one attempt came to; `again`: it may go better after another handshake.
  struct Attempt {
    Status status = {};
    bool again = false;
  };

  using Grant = AnyMessage<Granted, Refused>;

  void submit(std::shared_ptr<Job> job);
  void cancel(Job& job);
  void work();
  std::shared_ptr<Job> next_job() const;
  Outcome outcome_of(const Job& job, const Status& loaded);

  Status load(Job& job);
  Attempt attempt(Job& job);
  Status check_peer(const Peer& peer, const PullOrder& order) const;
  Attempt pull_rank(Job& job, Peer& peer, const RankMetadata& owner);
  Result<Grant> ask_grant(const Job& job, const RankMetadata& owner, Connection& connection) const;
  static Attempt refused(const Refused& refusal, const Peer& peer, const RemoteReference& from);
  Status copy(Job& job, const Connection::Use& use, const RankMetadata& owner,
              std::span<const ReadSpan> spans, const Granted& granted);
  bool begin_reading(const Job& job);
  Status read(Job& job, const Connection::Use& use, const RankMetadata& owner,
              std::span<const ReadSpan> spans, const Granted& granted);
  Status compare(const Job& job, const RankMetadata& owner, const Granted& granted);
  static Status confirm(Connection& connection, const Granted& granted, Connection::Wait wait);
  Consumer consumer_of(const RankMetadata& owner) const;
  bool tell_release(const Job& job, bool dial);

  const Options options_;
  TransferAgent& agent_;
  PeerTable& peers_;
  Heartbeats& heartbeats_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::span<std::byte> cache_;
  std::list<std::shared_ptr<Job>> jobs_;  // in order; those taken stay until they end
  std::vector<Outcome> outcomes_;
  std::size_t reading_ = 0;
  bool stopping_ = false;
  Counters counters_;
  std::vector<std::thread> threads_;
};

}  // namespace dormouse::pull

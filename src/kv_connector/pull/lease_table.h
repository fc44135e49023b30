// The blocks that this rank keeps for other engines, for how long, and who reads them.
//
// A lease ends once: when every consumer has pulled or released it, when it expires, or when the
// table is closed and nobody reads it. A read counts only if its lease was alive all the time,
// which is what `confirm` tells. Nothing here waits or looks at a clock.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kv_connector/pull/messages.h"

namespace dormouse::pull {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

enum class Refusal {
  kUnavailable,  // the table is closed
  kIncarnation,
  kGeneration,
  kExpired,  // or unknown: the table does not remember leases that ended
  kToken,
  kModel,   // computed with other weights than the consumer's
  kPrompt,  // of other tokens, or of another number of them, than the consumer's
  kBlocks,  // no run of the lease
};
inline constexpr std::array kRefusals = {
    Refusal::kUnavailable, Refusal::kIncarnation, Refusal::kGeneration, Refusal::kExpired,
    Refusal::kToken,       Refusal::kModel,       Refusal::kPrompt,     Refusal::kBlocks};
std::string_view to_string(Refusal refusal);

using GrantId = std::uint64_t;
using ReaderId = std::uint64_t;  // a connection

struct LeaseTimes {
  Clock::duration duration{};   // of a new lease
  Clock::duration extension{};  // at least so long from a grant or a heartbeat on
};

class LeaseTable {
 public:
  LeaseTable(std::string incarnation, LeaseTimes times);

  // Grants are given from here on. Another generation than before: leases and grants end.
  void open(std::uint64_t generation);
  // None are given any more. Leases that nobody reads end now, the others when their reads do.
  void close();
  // Whatever is left ends.
  void end_all();

  void add(LeaseOrder order, Time now);

  tl::expected<GrantId, Refusal> grant(const Pull& pull, ReaderId reader, Time now);
  // Ends a grant. True: the lease was alive from the grant on, so that what was read is good.
  bool confirm(GrantId grant, ReaderId reader, Time now);
  // False: no such lease.
  bool heartbeat(const LeaseName& name, Time now);
  bool release(const LeaseName& name, const Consumer& consumer, Time now);
  // Ends the reader's grants; the leases stay.
  void reader_gone(ReaderId reader);

  // Ends what is due and names it, each with how many consumers had pulled.
  struct Expired {
    RequestId request = 0;
    std::size_t pulled = 0;
  };
  std::vector<Expired> expire(Time now);

  // Requests whose lease ended since the last call, each once.
  RequestIds take_ended();

  std::uint64_t generation() const { return generation_; }
  const std::string& incarnation() const { return incarnation_; }
  std::size_t leases() const { return leases_.size(); }
  std::size_t grants() const { return grants_.size(); }

  struct Counters {
    std::uint64_t granted = 0;
    std::uint64_t expired = 0;
    std::array<std::uint64_t, kRefusals.size()> refused = {};
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Lease {
    LeaseOrder order;
    Time expiry;
    std::set<std::uint32_t> done;  // ranks of the consumer
  };
  struct Grant {
    std::string lease;
    ReaderId reader = 0;
    Consumer consumer;
  };
  using Leases = std::map<std::string, Lease>;

  tl::expected<GrantId, Refusal> try_grant(const Pull& pull, ReaderId reader, Time now);
  tl::expected<Leases::iterator, Refusal> find(const LeaseName& name, Time now);
  bool is_read(const std::string& lease) const;
  void extend(Lease& lease, Time now);
  void consumer_done(Leases::iterator lease, const Consumer& consumer);
  void end_unless_read(Leases::iterator lease);
  Leases::iterator end(Leases::iterator lease);

  const std::string incarnation_;
  const LeaseTimes times_;
  bool open_ = false;
  std::uint64_t generation_ = 0;
  Leases leases_;
  std::map<GrantId, Grant> grants_;
  GrantId last_grant_ = 0;
  RequestIds ended_;
  Counters counters_;
};

}  // namespace dormouse::pull

// The blocks that this rank keeps for other engines, for how long, and who reads them.
//
// A lease ends once: when consumers have pulled or released all of this rank's heads, when it
// expires, or when the table is closed and nobody reads it. However often it is extended, it
// expires four times its duration after it began: two engines that wait for each other's blocks,
// each with requests that wait for the other's, go on then. A read counts only if its lease was
// alive all the time, which is what `confirm` tells. Nothing here waits or looks at a clock.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kv_connector/pull/clock.h"
#include "kv_connector/pull/orders.h"

namespace dormouse::pull {

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
  Clock::duration extension{};  // from a grant or a heartbeat on, but not beyond the longest life
};

class LeaseTable {
 public:
  // `heads`: this rank's.
  LeaseTable(std::string incarnation, HeadRange heads, LeaseTimes times);

  // Grants are given from here on. Another generation than before: leases and grants end.
  void open(std::uint64_t generation);
  // None are given any more. Leases that nobody reads end now, the others when their reads do.
  void close();
  // Whatever is left ends.
  void end_all();

  void add(LeaseOrder order, Time now);

  tl::expected<GrantId, Refusal> grant(const Pull& pull, ReaderId reader, Time now);
  // Counts a refusal for a reason that the table does not know.
  Refusal refuse(Refusal refusal);
  // Ends a grant. True: the lease was alive from the grant on, so that what was read is good.
  bool confirm(const LeaseName& name, GrantId grant, ReaderId reader, Time now);
  // False: no such lease.
  bool heartbeat(const LeaseName& name, Time now);
  bool release(const LeaseName& name, HeadRange heads, Time now);
  // Ends the reader's grants; the leases stay.
  void reader_gone(ReaderId reader);

  // Ends what is due and names it, each with how often it had been pulled.
  struct Expired {
    RequestId request = 0;
    std::size_t pulled = 0;
  };
  std::vector<Expired> expire(Time now);

  // Requests whose lease ended since the last call, each once.
  RequestIds take_ended();

  std::size_t leases() const { return leases_.size(); }

  struct Counters {
    std::uint64_t granted = 0;
    std::uint64_t expired = 0;
    std::array<std::uint64_t, kRefusals.size()> refused = {};
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Reader {
    ReaderId id = 0;
    HeadRange heads;
  };
  struct Lease {
    LeaseOrder order;
    Time expiry;
    Time last_expiry;                // whatever extends it
    std::set<std::uint32_t> wanted;  // heads that nobody has pulled or released
    std::size_t pulled = 0;
    std::map<GrantId, Reader> readers;
  };
  using Leases = std::map<RequestId, Lease>;

  tl::expected<GrantId, Refusal> try_grant(const Pull& pull, ReaderId reader, Time now);
  tl::expected<Leases::iterator, Refusal> find(const LeaseName& name, Time now);
  void extend(Lease& lease, Time now);
  void heads_done(Leases::iterator lease, HeadRange heads);
  // The next one.
  Leases::iterator end_unless_read(Leases::iterator lease);
  Leases::iterator end(Leases::iterator lease);

  const std::string incarnation_;
  const HeadRange heads_;
  const LeaseTimes times_;
  bool open_ = false;
  std::uint64_t generation_ = 0;
  Leases leases_;
  GrantId last_grant_ = 0;
  RequestIds ended_;
  Counters counters_;
};

}  // namespace dormouse::pull

// The protocol of one pull: one order's blocks from one rank of their owner.
//
// Threads: any; the blocks that it writes are nobody else's meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kv_connector/pull/connection.h"
#include "kv_connector/pull/orders.h"
#include "kv_connector/pull/peer.h"
#include "kv_connector/pull/transfer_stats.h"
#include "transfer/transfer_agent.h"

namespace dormouse::pull {

// Where pulls go.
struct PullTarget {
  KvShape shape;
  std::uint32_t num_blocks = 0;
  std::span<std::byte> cache;
  bool verify = false;
};

// What one attempt came to.
struct PullAttempt {
  Status status = {};
  bool again = false;        // it failed, and may go better after another handshake
  bool mismatch = false;     // of a checksum
  TransferSample took = {};  // if it went well
};

// Whether the order can be answered by this peer at all.
Status check_peer(const Peer& peer, const PullOrder& order, const KvShape& shape);

// Reads, and asks the owner to confirm it: without that what was read is worth nothing. Each of its
// waits ends with `wait`; afterwards nothing is written any more.
PullAttempt pull_from(const Peer& peer, const RankMetadata& owner, const PullOrder& order,
                      const PullTarget& target, Connection& connection, TransferAgent& agent,
                      Connection::Wait wait);

}  // namespace dormouse::pull

// Other engines as a consuming rank sees them: who they are, and the connections to their ranks.
//
// A Peer is the outcome of one handshake. Once one of its connections has ended, by a revocation
// for instance, the peer is spent and the next `get` shakes hands again; one caller does, whoever
// else asks meanwhile waits for it. Neither that nor connecting takes longer than five seconds.
//
// Owns:    connections, and through them the mappings of other engines' caches.
// Threads: any.
// Errors:  kUnavailable (asleep, not there, gone), kDeadlineExceeded, kDataLoss (no such words),
//          kUnsupported (another protocol), kTransferFailed (another engine).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "dormouse/memory.h"
#include "kv_connector/pull/connection.h"
#include "kv_connector/pull/messages.h"

namespace dormouse::pull {

// What every connection of this rank needs to know.
struct Dialling {
  std::string directory;
  std::string token;
  std::string engine_id;  // ours
};

class Peer {
 public:
  Peer(Meta meta, std::vector<RankMetadata> ranks, std::uint32_t port, const Dialling& dialling,
       TransferAgent& agent);

  const Meta& meta() const { return meta_; }
  const std::vector<RankMetadata>& ranks() const { return ranks_; }

  // Connects once, one caller while others wait for it; a connection that ended is not replaced.
  Result<std::shared_ptr<Connection>> connection(std::uint32_t rank, Time deadline);
  // All that are connected.
  std::vector<std::shared_ptr<Connection>> connections() const;
  // Ends them, and one that is being made as soon as it is.
  void end();
  bool spent() const;

 private:
  struct Link {
    bool dialling = false;
    std::shared_ptr<Connection> connection;
  };

  const Meta meta_;
  const std::vector<RankMetadata> ranks_;
  const std::uint32_t port_;
  const Dialling& dialling_;
  TransferAgent& agent_;
  mutable std::mutex mutex_;  // never held while a peer is waited for
  std::condition_variable changed_;
  bool ended_ = false;
  std::vector<Link> links_;  // by rank
};

class PeerTable {
 public:
  PeerTable(Dialling dialling, TransferAgent& agent);

  Result<std::shared_ptr<Peer>> get(std::uint32_t port, Time deadline);
  // Whom get would answer with at once; null: nobody.
  std::shared_ptr<Peer> known(std::uint32_t port) const;
  // The next get shakes hands again, unless somebody did already.
  void forget(std::uint32_t port, const std::shared_ptr<Peer>& peer);

  // Drops every mapping; else what `may_wait` says while one is still in use.
  Status drop_all(const Unmapping& unmapping);
  // Ends everything, also handshakes under way, and refuses new ones. Waits for nobody.
  void shut_down();

  struct Counters {
    std::uint64_t handshakes = 0;
    std::uint64_t mappings = 0;  // of peers' caches, now
  };
  Counters counters() const;

 private:
  struct Entry {
    bool shaking_hands = false;
    std::shared_ptr<Peer> peer;
  };

  static bool usable(const Entry& entry);
  std::vector<std::shared_ptr<Peer>> peers() const;
  Result<std::shared_ptr<Peer>> shake_hands(std::uint32_t port, Time deadline);
  Result<Meta> ask_meta(std::uint32_t port, Time deadline);

  const Dialling dialling_;
  TransferAgent& agent_;
  mutable std::mutex mutex_;  // never held while a peer is waited for
  std::condition_variable changed_;
  std::map<std::uint32_t, Entry> entries_;  // by port
  std::set<net::Channel*> handshakes_;      // under way
  bool stopped_ = false;
  std::uint64_t count_ = 0;
};

}  // namespace dormouse::pull

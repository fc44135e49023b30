// The owner's side on one rank: answers peers, knows who maps this cache and who reads it, and gets
// everybody out before the cache is unmapped.
//
// A connection that imported is a registration: it ends when the importer says so, or with the
// connection. Neither is believed where the system tells who holds the cache: a release asks it
// about everybody who imported and lives. Where it does not tell, whoever went without a word may
// hold everything. Bytes of a peer are data: what cannot be read is answered, and nothing else
// happens.
//
// Owns:    the socket and its thread, the registration of the cache with the agent.
// Threads: open, release, add_lease and the destructor from the rank's thread; the rest from any.
//          What takes long (checksums, asking the system) blocks none of them.
// Order:   open; then release and open in turn. What a forced release leaves pinned is counted, and
//          reported by every later one, until its holder lets go.
// Errors:  kDeadlineExceeded from release names an importer that did not let go; kCancelled.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "dormouse/kv_connector.h"
#include "kv_connector/pull/lease_table.h"
#include "kv_connector/pull/process.h"
#include "net/server.h"
#include "transfer/transfer_agent.h"

namespace dormouse::pull {

class Endpoint final : public net::Server::Handler {
 public:
  struct Options {
    std::string connector;  // its name, for messages
    std::string path;
    std::string token;
    std::string incarnation;
    KvShape shape;
    LeaseTimes times;
  };
  static Result<std::unique_ptr<Endpoint>> start(Options options, TransferAgent& agent);
  // Registers the cache, unless this generation is registered, and lets peers in.
  Status open(const KvCaches& caches);
  // Keeps new readers out, ends the leases, waits for reads and importers to end, and drops the
  // registration. On error the registration is there; open() lets peers in again.
  Status release(Unmapping& unmapping);

  void add_lease(LeaseOrder order);
  RequestIds take_ended();

  struct Counters {
    LeaseTable::Counters leases;
    std::uint64_t active_leases = 0;
    std::uint64_t importers = 0;
    std::uint64_t revocations = 0;   // notices sent
    std::uint64_t pinned_bytes = 0;  // of earlier registrations, since forced releases
    bool registered = false;
  };
  Counters counters() const;

  void opened(net::ConnectionId connection, const net::PeerCredentials& peer) override;
  void received(net::ConnectionId connection, net::Message message) override;
  void closed(net::ConnectionId connection) override;
  void tick() override;

 private:
  struct Importer {
    std::string engine_id;
    Process process;
    auto operator<=>(const Importer& other) const {
      return std::pair(engine_id, process.pid()) <=>
             std::pair(other.engine_id, other.process.pid());
    }
  };
  struct Holder {
    Importer importer;
    std::uint64_t bytes = 0;  // at the worst
    std::string name() const;
    KeptMemory kept(const char* why) const { return {name(), bytes, why}; }
  };
  // What a forced release left behind, for as long as it is held.
  struct Pin {
    Holder holder;
    BytesHeldBy holding;
  };
  using Lock = std::unique_lock<std::mutex>;

  Endpoint(Options options, TransferAgent& agent);
  net::Server& server();

  Result<net::Message> answer(net::ConnectionId connection, std::string_view bytes);
  net::Message import(net::ConnectionId connection, const Import& request, std::uint64_t id);
  std::string pull(net::ConnectionId connection, const Pull& request, std::uint64_t id);
  std::vector<std::uint64_t> hashes(const Pull& request) const;
  std::string refuse(Refusal refusal, std::uint64_t id) const;
  void importer_gone(net::ConnectionId connection, bool says_so);

  void revoke_all();
  void forget_ended();
  std::vector<Holder> holders();
  void look_at_pins();
  void go_on_without(const std::vector<Holder>& holding, Unmapping& unmapping);

  const Options options_;
  TransferAgent& agent_;
  // Held while a checksum is made of the cache; taken before mutex_, and by release alone before it
  // drops the registration.
  std::mutex reading_;
  mutable std::mutex mutex_;
  LeaseTable leases_;
  KvCaches caches_;      // changed by open alone
  BytesHeldBy holding_;  // as caches_
  std::unique_ptr<MemoryRegistration> registration_;
  bool accepting_ = false;
  std::map<net::ConnectionId, Process> connections_;
  std::map<net::ConnectionId, Importer> importers_;  // that have the registration
  std::map<Importer, bool> gone_;  // that had it, and may live; true: all said they let go
  std::vector<Pin> pins_;
  Time pins_seen_;
  std::uint64_t revocations_ = 0;
  std::unique_ptr<net::Server> server_;  // last: its thread uses all of the above
};

}  // namespace dormouse::pull

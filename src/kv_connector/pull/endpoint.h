// The owner's side on one rank: answers peers, knows who maps this cache and who reads it, and gets
// everybody out before the cache is unmapped.
//
// A connection that imported is a registration: it ends when the importer says so, or with the
// connection. Bytes of a peer are data: what cannot be read is answered, and nothing else happens.
//
// Owns:    the socket and its thread, the registration of the cache with the agent.
// Threads: open, release, add_lease and the destructor from the rank's thread; the rest from any.
// Order:   open; then release and open in turn.
// Errors:  kDeadlineExceeded from release names the importer that did not let go; kCancelled.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dormouse/kv_connector.h"
#include "kv_connector/pull/lease_table.h"
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
  // Those that ended because of a mapping that is gone are nobody's any more.
  void forget_ended();

  struct Counters {
    LeaseTable::Counters leases;
    std::uint64_t active_leases = 0;
    std::uint64_t importers = 0;
    std::uint64_t revocations = 0;  // notices sent
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
    pid_t pid = 0;
  };
  using Importers = std::map<net::ConnectionId, Importer>;
  using Lock = std::unique_lock<std::mutex>;

  Endpoint(Options options, TransferAgent& agent);
  net::Server& server();

  Result<net::Message> answer(net::ConnectionId connection, std::string_view bytes);
  net::Message import(net::ConnectionId connection, const Import& request, std::uint64_t id);
  std::string pull(net::ConnectionId connection, const Pull& request, std::uint64_t id);
  std::string refuse(Refusal refusal, std::uint64_t id) const;
  void importer_gone(net::ConnectionId connection);

  Importers revoke_all(Lock& lock);
  Importers await_release(Lock& lock, const Importers& asked, const Unmapping& unmapping);
  std::uint64_t bytes_held_by(pid_t process) const;
  std::string describe(const Importer& importer) const;
  void go_on_without(Lock& lock, const Importers& silent, Unmapping& unmapping);

  const Options options_;
  TransferAgent& agent_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  LeaseTable leases_;
  KvCaches caches_;
  std::unique_ptr<MemoryRegistration> registration_;
  bool accepting_ = false;
  std::map<net::ConnectionId, pid_t> connections_;
  Importers importers_;
  std::uint64_t revocations_ = 0;
  std::unique_ptr<net::Server> server_;  // last: its thread uses all of the above
};

}  // namespace dormouse::pull

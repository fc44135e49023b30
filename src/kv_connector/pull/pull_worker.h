// The worker half of a connector that pulls: an owner's endpoint, and a consumer's loads.
//
// Owns:    everything of this rank that other engines can reach or that reaches them.
// Threads: the rank's own.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "kv_connector/pull/endpoint.h"
#include "kv_connector/pull/heartbeats.h"
#include "kv_connector/pull/peer.h"
#include "kv_connector/pull/pull_config.h"
#include "kv_connector/pull/puller.h"
#include "transfer/transfer_agent.h"

namespace dormouse::pull {

class PullWorker : public WorkerConnector, public FollowsMapping {
 public:
  using MakeAgent = std::function<std::unique_ptr<TransferAgent>(VmmDriver&, unsigned threads)>;
  // `name`: the connector's, for messages.
  static Result<std::unique_ptr<PullWorker>> create(const KvConnectorContext& context,
                                                    std::string name, MakeAgent make_agent);
  ~PullWorker() override;

  Status register_kv_caches(const KvCaches& caches) override;
  void bind_connector_metadata(const std::string& metadata) override;
  void start_load_kv() override;
  void get_finished(const RequestIds& finished, KvConnectorOutput& output) override;
  std::string get_handshake_metadata() override;
  KvConnectorStats get_kv_connector_stats() const override;
  void shutdown() override;

  Status release_kv_caches(Unmapping& unmapping) override;
  Status restore_kv_caches(const KvCaches& caches) override;

 private:
  PullWorker(const KvConnectorContext& context, std::string name, PullConfig config,
             net::MeetingPlace place, MakeAgent make_agent);
  Status serve_owners_side();
  void start_loading(std::span<std::byte> cache);
  Status let_go_of_peers(const Unmapping& unmapping, Time began);
  void return_leases();

  const KvConnectorContext context_;
  const std::string name_;
  const PullConfig config_;
  const net::MeetingPlace place_;
  const MakeAgent make_agent_;
  std::uint64_t generation_ = 0;
  Orders orders_;
  // From register_kv_caches until shutdown; each uses those before it.
  std::unique_ptr<TransferAgent> agent_;
  std::unique_ptr<Endpoint> endpoint_;  // null if this engine only consumes
  std::unique_ptr<PeerTable> peers_;
  std::unique_ptr<Heartbeats> heartbeats_;
  std::unique_ptr<Puller> puller_;
};

}  // namespace dormouse::pull

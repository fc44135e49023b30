#include "kv_connector/pull/peer.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "kv_connector/pull/pull_config.h"

namespace dormouse::pull {
namespace {

constexpr std::chrono::seconds kHandshakeTimeout(5);

Result<std::vector<RankMetadata>> decode_ranks(const Meta& meta) {
  if (meta.version != kProtocolVersion)
    return fail(ErrorCode::kUnsupported,
                fmt::format("engine {} speaks version {} of the protocol; this engine speaks {}",
                            meta.engine_id, meta.version, kProtocolVersion));
  if (meta.ranks.empty() || meta.ranks.size() != meta.world_size)
    return fail(ErrorCode::kDataLoss,
                fmt::format("engine {} names {} of its {} ranks", meta.engine_id, meta.ranks.size(),
                            meta.world_size));
  std::vector<RankMetadata> ranks;
  for (const std::string& bytes : meta.ranks) {
    DM_TRY_ASSIGN(RankMetadata rank, decode_rank_metadata(bytes));
    if (rank.rank != ranks.size())
      return fail(ErrorCode::kDataLoss,
                  fmt::format("engine {} names its ranks out of order", meta.engine_id));
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

}  // namespace

Peer::Peer(Meta meta, std::vector<RankMetadata> ranks, std::uint32_t port, const Dialling& dialling,
           TransferAgent& agent)
    : meta_(std::move(meta)),
      ranks_(std::move(ranks)),
      port_(port),
      dialling_(dialling),
      agent_(agent),
      connections_(ranks_.size()) {}

Result<std::shared_ptr<Connection>> Peer::connection(std::uint32_t rank, Time deadline) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Connection>& connection = connections_.at(rank);
  if (connection == nullptr) {
    DM_TRY_ASSIGN(connection,
                  Connection::open({.path = rank_socket(dialling_.directory, port_, rank),
                                    .token = dialling_.token,
                                    .engine_id = dialling_.engine_id},
                                   agent_, deadline));
  }
  return connection;
}

std::vector<std::shared_ptr<Connection>> Peer::connections() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Connection>> connected;
  for (const auto& connection : connections_) {
    if (connection != nullptr)
      connected.push_back(connection);
  }
  return connected;
}

bool Peer::spent() const {
  const auto connected = connections();
  return std::any_of(connected.begin(), connected.end(),
                     [](const auto& connection) { return !connection->alive(); });
}

PeerTable::PeerTable(Dialling dialling, TransferAgent& agent)
    : dialling_(std::move(dialling)), agent_(agent) {}

bool PeerTable::usable(const Entry& entry) {
  return entry.peer != nullptr && !entry.peer->spent();
}

std::shared_ptr<Peer> PeerTable::known(std::uint32_t port) const {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(port);
  return entry != entries_.end() && usable(entry->second) ? entry->second.peer : nullptr;
}

Result<std::shared_ptr<Peer>> PeerTable::get(std::uint32_t port, Time deadline) {
  deadline = std::min(deadline, Clock::now() + kHandshakeTimeout);
  std::unique_lock lock(mutex_);
  Entry& entry = entries_[port];  // entries stay where they are
  if (!changed_.wait_until(lock, deadline, [&] { return !entry.shaking_hands; }))
    return fail(ErrorCode::kDeadlineExceeded, "another handshake with the peer takes too long");
  if (usable(entry))
    return entry.peer;
  entry.shaking_hands = true;
  lock.unlock();
  auto peer = shake_hands(port, deadline);
  lock.lock();
  entry.shaking_hands = false;
  changed_.notify_all();
  if (stopped_)
    return fail(ErrorCode::kUnavailable, "shutting down");
  if (peer) {
    ++count_;
    entry.peer = *peer;
  }
  return peer;
}

Result<std::shared_ptr<Peer>> PeerTable::shake_hands(std::uint32_t port, Time deadline) {
  DM_TRY_ASSIGN(Meta meta, ask_meta(port, deadline));
  DM_TRY_ASSIGN(auto ranks, decode_ranks(meta));
  return std::make_shared<Peer>(std::move(meta), std::move(ranks), port, dialling_, agent_);
}

Result<Meta> PeerTable::ask_meta(std::uint32_t port, Time deadline) {
  DM_TRY_ASSIGN(net::Channel channel,
                net::connect_with_token(scheduler_socket(dialling_.directory, port),
                                        dialling_.token, deadline));
  {
    const std::lock_guard lock(mutex_);
    if (stopped_)
      return fail(ErrorCode::kUnavailable, "shutting down");
    handshakes_.insert(&channel);
  }
  auto answer = [&]() -> Result<net::Message> {
    DM_TRY(channel.send({.bytes = encode_message(GetMeta{}, 1), .descriptors = {}}, deadline));
    return channel.receive(deadline);
  }();
  {
    const std::lock_guard lock(mutex_);
    handshakes_.erase(&channel);
  }
  if (!answer)
    return tl::unexpected(std::move(answer).error());
  using Answer = AnyMessage<Meta, Unavailable, Malformed>;
  DM_TRY_ASSIGN(Answer decoded, Answer::decode(answer->bytes));
  if (const auto* unavailable = std::get_if<Unavailable>(&decoded.body))
    return fail(ErrorCode::kUnavailable, "the peer is unavailable: " + unavailable->reason);
  if (const auto* malformed = std::get_if<Malformed>(&decoded.body))
    return fail(ErrorCode::kDataLoss, "the peer did not understand: " + malformed->reason);
  return std::move(std::get<Meta>(decoded.body));
}

void PeerTable::forget(std::uint32_t port, const std::shared_ptr<Peer>& peer) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(port);
  if (entry != entries_.end() && entry->second.peer == peer)
    entry->second.peer = nullptr;
}

bool PeerTable::drop_all(Time deadline) {
  std::vector<std::shared_ptr<Peer>> peers;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [port, entry] : entries_) {
      if (entry.peer != nullptr)
        peers.push_back(entry.peer);
      entry.peer = nullptr;
    }
  }
  bool dropped = true;
  for (const auto& peer : peers) {
    for (const auto& connection : peer->connections())
      dropped = connection->shut_down(deadline) && dropped;
  }
  return dropped;
}

void PeerTable::shut_down() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    for (net::Channel* channel : handshakes_)
      channel->shut_down();
  }
  drop_all(Clock::now());
}

PeerTable::Counters PeerTable::counters() const {
  std::vector<std::shared_ptr<Peer>> peers;
  Counters counters;
  {
    const std::lock_guard lock(mutex_);
    counters.handshakes = count_;
    for (const auto& [port, entry] : entries_)
      peers.push_back(entry.peer);
  }
  for (const auto& peer : peers) {
    const auto connected =
        peer == nullptr ? std::vector<std::shared_ptr<Connection>>() : peer->connections();
    for (const auto& connection : connected)
      counters.mappings += connection->holds_memory() ? 1 : 0;
  }
  return counters;
}

}  // namespace dormouse::pull

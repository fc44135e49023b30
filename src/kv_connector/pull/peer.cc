#include "kv_connector/pull/peer.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv_connector/pull/pull_config.h"
#include "kv_connector/pull/release_wait.h"

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
      links_(ranks_.size()) {}

Result<std::shared_ptr<Connection>> Peer::connection(std::uint32_t rank, Time deadline) {
  deadline = std::min(deadline, Clock::now() + kHandshakeTimeout);
  std::unique_lock lock(mutex_);
  Link& link = links_.at(rank);
  if (!changed_.wait_until(lock, deadline, [&] { return !link.dialling; }))
    return fail(ErrorCode::kDeadlineExceeded, "the peer takes too long to let anybody in");
  if (link.connection != nullptr)
    return link.connection;
  link.dialling = true;
  lock.unlock();
  auto connection = Connection::open({.path = rank_socket(dialling_.directory, port_, rank),
                                      .token = dialling_.token,
                                      .engine_id = dialling_.engine_id},
                                     agent_, deadline);
  lock.lock();
  link.dialling = false;
  changed_.notify_all();
  if (!ended_) {
    if (connection)
      link.connection = *connection;
    return connection;
  }
  lock.unlock();  // the end of the connection may take its time
  return fail(ErrorCode::kUnavailable, "the peer was dropped meanwhile");
}

std::vector<std::shared_ptr<Connection>> Peer::connections() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Connection>> connected;
  for (const Link& link : links_) {
    if (link.connection != nullptr)
      connected.push_back(link.connection);
  }
  return connected;
}

void Peer::end() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  for (const auto& connection : connections())
    connection->end();
}

bool Peer::spent() const {
  const std::lock_guard lock(mutex_);
  return ended_ || std::ranges::any_of(links_, [](const Link& link) {
           return link.connection != nullptr && !link.connection->alive();
         });
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
  std::shared_ptr<Peer> spent;  // its end may take its time, and comes after the lock's
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
    spent = std::exchange(entry.peer, *peer);
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
    return fail(ErrorCode::kUnavailable, "it is unavailable: " + unavailable->reason);
  if (const auto* malformed = std::get_if<Malformed>(&decoded.body))
    return fail(ErrorCode::kDataLoss, "it did not understand: " + malformed->reason);
  return std::move(std::get<Meta>(decoded.body));
}

void PeerTable::forget(std::uint32_t port, const std::shared_ptr<Peer>& peer) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(port);
  if (entry != entries_.end() && entry->second.peer == peer)
    entry->second.peer = nullptr;
}

std::vector<std::shared_ptr<Peer>> PeerTable::peers() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Peer>> peers;
  for (const auto& [port, entry] : entries_) {
    if (entry.peer != nullptr)
      peers.push_back(entry.peer);
  }
  return peers;
}

Status PeerTable::drop_all(const Unmapping& unmapping) {
  const auto dropped = peers();
  for (const auto& peer : dropped)
    peer->end();
  return await(unmapping, [&] {
    return std::ranges::all_of(dropped, [](const auto& peer) {
      return std::ranges::all_of(peer->connections(), &Connection::has_let_go);
    });
  });
}

void PeerTable::shut_down() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    for (net::Channel* channel : handshakes_)
      channel->shut_down();
  }
  for (const auto& peer : peers())
    peer->end();
}

PeerTable::Counters PeerTable::counters() const {
  Counters counters;
  for (const auto& peer : peers()) {
    for (const auto& connection : peer->connections())
      counters.mappings += connection->holds_memory() ? 1 : 0;
  }
  const std::lock_guard lock(mutex_);
  counters.handshakes = count_;
  return counters;
}

}  // namespace dormouse::pull

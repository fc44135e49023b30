#include "kv_connector/pull/endpoint.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "kv_connector/pull/read_plan.h"
#include "kv_connector/pull/release_wait.h"

namespace dormouse::pull {
namespace {

constexpr std::string_view kFolder = "kv_connector";

net::Message reply(std::string bytes) {
  return {.bytes = std::move(bytes), .descriptors = {}};
}

}  // namespace

Endpoint::Endpoint(Options options, TransferAgent& agent)
    : options_(std::move(options)),
      agent_(agent),
      leases_(options_.incarnation, heads_of(options_.shape), options_.times) {}

Result<std::unique_ptr<Endpoint>> Endpoint::start(Options options, TransferAgent& agent) {
  std::unique_ptr<Endpoint> endpoint(new Endpoint(std::move(options), agent));
  const Options& used = endpoint->options_;
  const auto tick = std::chrono::duration_cast<std::chrono::milliseconds>(used.times.duration / 10);
  const std::chrono::milliseconds longest(100);
  const Lock lock(endpoint->mutex_);
  DM_TRY_ASSIGN(
      endpoint->server_,
      net::Server::start({.path = used.path,
                          .token = used.token,
                          .tick = std::clamp(tick, std::chrono::milliseconds(10), longest)},
                         *endpoint));
  return endpoint;
}

// The first message may come before the server is in its place.
net::Server& Endpoint::server() {
  const Lock lock(mutex_);
  return *server_;
}

Status Endpoint::open(const KvCaches& caches) {
  const Lock lock(mutex_);
  if (registration_ == nullptr || caches_.generation != caches.generation) {
    registration_.reset();
    DM_TRY_ASSIGN(holding_, agent_.holding(caches));
    DM_TRY_ASSIGN(registration_, agent_.register_memory(caches));
    caches_ = caches;
  }
  leases_.open(caches.generation);
  accepting_ = true;
  return {};
}

void Endpoint::add_lease(LeaseOrder order) {
  const Lock lock(mutex_);
  leases_.add(std::move(order), Clock::now());
}

RequestIds Endpoint::take_ended() {
  const Lock lock(mutex_);
  return leases_.take_ended();
}

Endpoint::Counters Endpoint::counters() const {
  const Lock lock(mutex_);
  std::uint64_t pinned = 0;
  for (const Pin& pin : pins_)
    pinned += pin.holder.bytes;
  return {.leases = leases_.counters(),
          .active_leases = leases_.leases(),
          .importers = importers_.size(),
          .revocations = revocations_,
          .pinned_bytes = pinned,
          .registered = registration_ != nullptr};
}

void Endpoint::opened(net::ConnectionId connection, const net::PeerCredentials& peer) {
  const Lock lock(mutex_);
  connections_[connection] = Process(peer.pid);
}

void Endpoint::closed(net::ConnectionId connection) {
  const Lock lock(mutex_);
  connections_.erase(connection);
  importer_gone(connection, false);
}

void Endpoint::importer_gone(net::ConnectionId connection, bool says_so) {
  leases_.reader_gone(connection);
  forget_ended();
  if (auto importer = importers_.extract(connection)) {
    const auto [gone, first] = gone_.try_emplace(std::move(importer.mapped()), says_so);
    gone->second = gone->second && says_so;
  }
}

void Endpoint::tick() {
  look_at_pins();
  const Lock lock(mutex_);
  forget_ended();
  for (const auto& [request, pulled] : leases_.expire(Clock::now()))
    log(LogLevel::kWarning, kFolder,
        "Releasing expired KV blocks for request {} which were retrieved by {} remote worker(s) "
        "before the lease expired",
        request, pulled);
}

void Endpoint::received(net::ConnectionId connection, net::Message message) {
  auto answered = answer(connection, message.bytes);
  if (!answered) {
    const auto head = decode_fields<MessageHead>(message.bytes, "message");
    answered = reply(encode_message(Malformed{answered.error().message}, head ? head->id : 0));
  }
  if (!answered->bytes.empty())
    server().send(connection, std::move(*answered));
}

Result<net::Message> Endpoint::answer(net::ConnectionId connection, std::string_view bytes) {
  using Request = AnyMessage<Import, Pull, Pulled, Heartbeat, Release, Revoked>;
  DM_TRY_ASSIGN(const Request request, Request::decode(bytes));
  if (const auto* wanted = std::get_if<Pull>(&request.body))
    return reply(pull(connection, *wanted, request.id));
  const Time now = Clock::now();
  const Lock lock(mutex_);
  if (const auto* wanted = std::get_if<Import>(&request.body))
    return import(connection, *wanted, request.id);
  if (const auto* pulled = std::get_if<Pulled>(&request.body)) {
    const bool alive = leases_.confirm(pulled->name, pulled->grant, connection, now);
    return reply(encode_message(Confirmed{alive}, request.id));
  }
  if (const auto* release = std::get_if<Release>(&request.body))
    leases_.release(release->name, release->heads, now);
  else if (const auto* heartbeat = std::get_if<Heartbeat>(&request.body))
    for (const LeaseName& name : heartbeat->leases)
      leases_.heartbeat(name, now);
  else
    importer_gone(connection, true);
  return net::Message{};
}

net::Message Endpoint::import(net::ConnectionId connection, const Import& request,
                              std::uint64_t id) {
  if (!accepting_)
    return reply(refuse(Refusal::kUnavailable, id));
  auto exported = registration_->export_memory();
  if (!exported)
    return reply(encode_message(Malformed{exported.error().message}, id));
  importers_[connection] = {request.engine_id, connections_[connection]};
  const Memory memory{options_.incarnation, caches_.generation, std::move(exported->metadata)};
  return {encode_message(memory, id), std::move(exported->descriptors)};
}

std::string Endpoint::pull(net::ConnectionId connection, const Pull& request, std::uint64_t id) {
  const std::lock_guard reading(reading_);
  Lock lock(mutex_);
  // Whoever does not map this generation would read another one's pages.
  const tl::expected<GrantId, Refusal> grant =
      accepting_ && !importers_.contains(connection)
          ? tl::unexpected(leases_.refuse(Refusal::kGeneration))
          : leases_.grant(request, connection, Clock::now());
  if (!grant)
    return refuse(grant.error(), id);
  lock.unlock();
  return encode_message(Granted{*grant, hashes(request)}, id);
}

std::vector<std::uint64_t> Endpoint::hashes(const Pull& request) const {
  const HeadRange heads = common_heads(request.heads, heads_of(options_.shape));
  std::vector<std::uint64_t> hashes;
  if (!request.verify || heads.empty())
    return hashes;
  const std::size_t block_bytes = options_.shape.block_bytes();
  for (const BlockId block : request.blocks)
    hashes.push_back(hash_heads(options_.shape, caches_.bytes.data() + block * block_bytes, heads));
  return hashes;
}

std::string Endpoint::refuse(Refusal refusal, std::uint64_t id) const {
  const Refused refused{std::string(to_string(refusal)), options_.incarnation, caches_.generation};
  return encode_message(refused, id);
}

// Once a second: it reads what the system says of a process.
void Endpoint::look_at_pins() {
  Lock lock(mutex_);
  if (pins_.empty() || Clock::now() - pins_seen_ < std::chrono::seconds(1))
    return;
  pins_seen_ = Clock::now();
  std::vector<Pin> pins = pins_;
  lock.unlock();
  for (Pin& pin : pins) {
    const Process& process = pin.holder.importer.process;
    const auto held = pin.holding(process.pid());
    pin.holder.bytes = process.has_ended() ? 0 : held.value_or(pin.holder.bytes);
  }
  lock.lock();
  // Meanwhile there may have come more, at the end.
  std::ranges::copy(pins, pins_.begin());
  std::erase_if(pins_, [](const Pin& pin) { return pin.holder.bytes == 0; });
}

std::string Endpoint::Holder::name() const {
  return fmt::format("importer {} (pid {})", importer.engine_id, importer.process.pid());
}

Status Endpoint::release(Unmapping& unmapping) {
  const Time began = Clock::now();
  {
    const Lock lock(mutex_);
    if (registration_ == nullptr)
      return {};
    accepting_ = false;
    leases_.close();
  }
  revoke_all();
  const Status awaited =
      await(unmapping, [this] { return counters().importers == 0 && holders().empty(); });
  if (!awaited && awaited.error().code == ErrorCode::kCancelled)
    return fail(ErrorCode::kCancelled,
                fmt::format("{}: cancelled while importers were asked to let go; nothing was "
                            "unmapped",
                            options_.connector));
  const auto holding = awaited ? std::vector<Holder>() : holders();
  if (!holding.empty() && !unmapping.force)
    return fail(ErrorCode::kDeadlineExceeded,
                fmt::format("{}: {} did not release its mapping within {} ms; nothing was "
                            "unmapped. Use force=true to go on without it",
                            options_.connector, holding.front().name(),
                            count_milliseconds(Clock::now() - began)));
  go_on_without(holding, unmapping);
  const std::lock_guard reading(reading_);
  const Lock lock(mutex_);
  leases_.end_all();
  gone_.clear();
  registration_.reset();
  return {};
}

// The server's thread may wait for our lock while it holds its own, so nothing is sent under ours.
void Endpoint::revoke_all() {
  std::vector<net::ConnectionId> asked;
  Lock lock(mutex_);
  for (const auto& [connection, importer] : importers_)
    asked.push_back(connection);
  revocations_ += asked.size();
  const std::string notice = encode_message(Revoke{caches_.generation});
  lock.unlock();
  for (const net::ConnectionId connection : asked)
    server_->send(connection, {.bytes = notice, .descriptors = {}});
}

// The dead hold nothing, and their numbers may be others' by now. Under the mutex.
void Endpoint::forget_ended() {
  std::erase_if(gone_, [](const auto& gone) { return gone.first.process.has_ended(); });
}

// Whoever has not even read its descriptors holds them, though the system does not show it.
std::vector<Endpoint::Holder> Endpoint::holders() {
  Lock lock(mutex_);
  forget_ended();
  const auto gone = gone_;
  std::map<Importer, std::uint64_t> at_least;
  for (const auto& [importer, says_so] : gone)
    at_least[importer] = 0;
  for (const auto& [connection, importer] : importers_)
    at_least[importer] = caches_.bytes.size();
  lock.unlock();
  std::vector<Holder> holders;
  for (const auto& [importer, least] : at_least) {
    const auto word = gone.find(importer);
    const bool believed = word != gone.end() && word->second;
    const auto held = holding_(importer.process.pid());
    const std::uint64_t bytes = std::max(least, held.value_or(believed ? 0 : caches_.bytes.size()));
    if (bytes > 0)
      holders.push_back({importer, bytes});
  }
  return holders;
}

void Endpoint::go_on_without(const std::vector<Holder>& holding, Unmapping& unmapping) {
  std::vector<net::ConnectionId> silent;
  Lock lock(mutex_);
  for (const Pin& pin : pins_)
    unmapping.kept.push_back(pin.holder.kept("it has held this since an earlier, forced sleep"));
  for (const Holder& holder : holding) {
    unmapping.kept.push_back(holder.kept("it did not let go, and the sleep was forced"));
    log(LogLevel::kWarning, kFolder, "going on without {}, which pins bytes={}", holder.name(),
        holder.bytes);
    pins_.push_back({holder, holding_});
  }
  for (const auto& [connection, importer] : importers_)
    silent.push_back(connection);
  for (const net::ConnectionId connection : silent)
    importer_gone(connection, false);
  lock.unlock();
  for (const net::ConnectionId connection : silent)
    server_->close(connection);
}

}  // namespace dormouse::pull

#include "kv_connector/pull/endpoint.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/log.h"
#include "kv_connector/pull/read_plan.h"

namespace dormouse::pull {
namespace {

constexpr std::string_view kFolder = "kv_connector";
constexpr std::chrono::minutes kLongestRelease(1);
constexpr std::chrono::milliseconds kPause(5);

net::Message reply(std::string bytes) {
  return {.bytes = std::move(bytes), .descriptors = {}};
}

bool is_cancelled(const Unmapping& unmapping) {
  return unmapping.cancelled != nullptr && unmapping.cancelled->load();
}

std::int64_t milliseconds(Clock::duration time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
}

}  // namespace

Endpoint::Endpoint(Options options, TransferAgent& agent)
    : options_(std::move(options)), agent_(agent), leases_(options_.incarnation, options_.times) {}

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

void Endpoint::forget_ended() {
  const Lock lock(mutex_);
  leases_.take_ended();
}

Endpoint::Counters Endpoint::counters() const {
  const Lock lock(mutex_);
  return {.leases = leases_.counters(),
          .active_leases = leases_.leases(),
          .importers = importers_.size(),
          .revocations = revocations_,
          .registered = registration_ != nullptr};
}

void Endpoint::opened(net::ConnectionId connection, const net::PeerCredentials& peer) {
  const Lock lock(mutex_);
  connections_[connection] = peer.pid;
}

void Endpoint::closed(net::ConnectionId connection) {
  const Lock lock(mutex_);
  connections_.erase(connection);
  importer_gone(connection);
}

void Endpoint::importer_gone(net::ConnectionId connection) {
  importers_.erase(connection);
  leases_.reader_gone(connection);
  changed_.notify_all();
}

void Endpoint::tick() {
  const Lock lock(mutex_);
  for (const auto& [request, pulled] : leases_.expire(Clock::now()))
    log(LogLevel::kWarning, kFolder,
        "Releasing expired KV blocks for request {} which were retrieved by {} remote worker(s) "
        "before the lease expired",
        request, pulled);
}

void Endpoint::received(net::ConnectionId connection, net::Message message) {
  auto answered = answer(connection, message.bytes);
  if (!answered) {
    const auto head = read_head(message.bytes);
    answered = reply(encode_message(Malformed{answered.error().message}, head ? head->id : 0));
  }
  if (!answered->bytes.empty())
    server().send(connection, std::move(*answered));
}

Result<net::Message> Endpoint::answer(net::ConnectionId connection, std::string_view bytes) {
  using Request = AnyMessage<Import, Pull, Pulled, Heartbeat, Release, Revoked>;
  DM_TRY_ASSIGN(const Request request, Request::decode(bytes));
  const Time now = Clock::now();
  const Lock lock(mutex_);
  if (const auto* wanted = std::get_if<Import>(&request.body))
    return import(connection, *wanted, request.id);
  if (const auto* wanted = std::get_if<Pull>(&request.body))
    return reply(pull(connection, *wanted, request.id));
  Confirmed confirmed;
  if (const auto* pulled = std::get_if<Pulled>(&request.body)) {
    confirmed.alive = leases_.confirm(pulled->grant, connection, now);
  } else if (const auto* release = std::get_if<Release>(&request.body)) {
    confirmed.alive = leases_.release(release->name, release->consumer, now);
  } else if (const auto* heartbeat = std::get_if<Heartbeat>(&request.body)) {
    confirmed.alive = true;
    for (const LeaseName& name : heartbeat->leases)
      confirmed.alive = leases_.heartbeat(name, now) && confirmed.alive;
  } else {
    importer_gone(connection);
    return net::Message{};
  }
  return reply(encode_message(confirmed, request.id));
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
  // Whoever does not map this generation would read another one's pages.
  if (accepting_ && !importers_.contains(connection))
    return refuse(Refusal::kGeneration, id);
  const auto grant = leases_.grant(request, connection, Clock::now());
  if (!grant)
    return refuse(grant.error(), id);
  Granted granted{.grant = *grant, .hashes = {}};
  const HeadRange heads{std::max(request.first_kv_head, options_.shape.first_kv_head),
                        std::min(request.last_kv_head, options_.shape.last_kv_head)};
  if (request.verify && !heads.empty()) {
    const std::size_t block_bytes = options_.shape.block_bytes();
    for (const BlockId block : request.blocks)
      granted.hashes.push_back(
          hash_heads(options_.shape, caches_.bytes.data() + block * block_bytes, heads));
  }
  return encode_message(granted, id);
}

std::string Endpoint::refuse(Refusal refusal, std::uint64_t id) const {
  const Refused refused{std::string(to_string(refusal)), options_.incarnation, caches_.generation};
  return encode_message(refused, id);
}

Status Endpoint::release(Unmapping& unmapping) {
  Lock lock(mutex_);
  if (registration_ == nullptr)
    return {};
  const Time began = Clock::now();
  accepting_ = false;
  leases_.close();
  const Importers asked = revoke_all(lock);
  const Importers silent = await_release(lock, asked, unmapping);
  if (is_cancelled(unmapping))
    return fail(ErrorCode::kCancelled,
                fmt::format("{}: cancelled while importers were asked to let go; nothing was "
                            "unmapped",
                            options_.connector));
  if (!silent.empty() && !unmapping.force)
    return fail(ErrorCode::kDeadlineExceeded,
                fmt::format("{}: {} did not release its mapping within {} ms; nothing was "
                            "unmapped. Use force=true to go on without it",
                            options_.connector, describe(silent.begin()->second),
                            milliseconds(Clock::now() - began)));
  go_on_without(lock, silent, unmapping);
  leases_.end_all();
  registration_.reset();
  return {};
}

// The server's thread may wait for our lock while it holds its own, so nothing is sent under ours.
Endpoint::Importers Endpoint::revoke_all(Lock& lock) {
  const Importers asked = importers_;
  revocations_ += asked.size();
  const std::string notice = encode_message(Revoke{caches_.generation});
  lock.unlock();
  for (const auto& [connection, importer] : asked)
    server_->send(connection, {.bytes = notice, .descriptors = {}});
  lock.lock();
  return asked;
}

// Those that still hold the cache at the deadline. A word is not enough where the kernel can tell.
Endpoint::Importers Endpoint::await_release(Lock& lock, const Importers& asked,
                                            const Unmapping& unmapping) {
  const Time deadline = std::min(unmapping.deadline, Clock::now() + kLongestRelease);
  const auto over = [&] { return Clock::now() >= deadline || is_cancelled(unmapping); };
  while (!importers_.empty() && !over())
    changed_.wait_until(lock, std::min(deadline, Clock::now() + kPause));
  Importers silent = importers_;
  for (const auto& [connection, importer] : asked) {
    while (bytes_held_by(importer.pid) > 0 && !over())
      changed_.wait_until(lock, Clock::now() + kPause);
    if (bytes_held_by(importer.pid) > 0)
      silent.emplace(connection, importer);
  }
  return silent;
}

std::uint64_t Endpoint::bytes_held_by(pid_t process) const {
  return agent_.bytes_held_by(caches_, process).value_or(0);
}

std::string Endpoint::describe(const Importer& importer) const {
  return fmt::format("importer {} (pid {})", importer.engine_id, importer.pid);
}

void Endpoint::go_on_without(Lock& lock, const Importers& silent, Unmapping& unmapping) {
  for (const auto& [connection, importer] : silent) {
    const auto held = agent_.bytes_held_by(caches_, importer.pid);
    const std::uint64_t bytes = held ? *held : caches_.bytes.size();
    unmapping.kept.push_back(
        {describe(importer), bytes, "it did not let go, and the sleep was forced"});
    log(LogLevel::kWarning, kFolder, "going on without {}, which pins bytes={}", describe(importer),
        bytes);
    importer_gone(connection);
  }
  lock.unlock();
  for (const auto& [connection, importer] : silent)
    server_->close(connection);
  lock.lock();
}

}  // namespace dormouse::pull

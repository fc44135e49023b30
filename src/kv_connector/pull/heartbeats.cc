#include "kv_connector/pull/heartbeats.h"

#include "kv_connector/pull/read_plan.h"

namespace dormouse::pull {
namespace {

constexpr std::chrono::seconds kPatience(1);  // with one peer, so that the others are heard

}  // namespace

Heartbeats::Heartbeats(PeerTable& peers, HeadRange heads, Clock::duration interval)
    : peers_(peers), heads_(heads), interval_(interval) {
  thread_ = std::thread([this] { beat(); });
}

Heartbeats::~Heartbeats() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Heartbeats::start(ReferenceOrder order) {
  const std::lock_guard lock(mutex_);
  references_[order.request] = std::move(order.from);
}

void Heartbeats::stop(RequestId request) {
  const std::lock_guard lock(mutex_);
  references_.erase(request);
}

std::vector<ReferenceOrder> Heartbeats::stop_all() {
  const std::lock_guard lock(mutex_);
  std::vector<ReferenceOrder> stopped;
  for (auto& [request, reference] : references_)
    stopped.push_back({request, std::move(reference)});
  references_.clear();
  return stopped;
}

void Heartbeats::beat() {
  std::unique_lock lock(mutex_);
  Time next = Clock::now() + interval_;
  while (!changed_.wait_until(lock, next, [this] { return stopping_; })) {
    const auto leases = by_port();
    lock.unlock();
    for (const auto& [port, names] : leases)
      send(port, names);
    lock.lock();
    next = std::max(next + interval_, Clock::now());
  }
}

std::map<std::uint32_t, Heartbeats::Leases> Heartbeats::by_port() const {
  std::map<std::uint32_t, Leases> leases;
  for (const auto& [request, reference] : references_)
    leases[reference.port].push_back(reference.name);
  return leases;
}

// Whoever cannot be reached now is asked again by the next beat, or by the load itself.
void Heartbeats::send(std::uint32_t port, const Leases& leases) {
  const Time deadline = Clock::now() + std::min<Clock::duration>(interval_, kPatience);
  const auto peer = peers_.get(port, deadline);
  if (!peer)
    return;
  for (const RankMetadata& owner : (*peer)->ranks()) {
    if (common_heads(heads_, heads_of(owner.shape)).empty())
      continue;
    if (const auto connection = (*peer)->connection(owner.rank, deadline))
      (void)(*connection)->post(Heartbeat{leases}, deadline);
  }
}

}  // namespace dormouse::pull

#include "kv_connector/pull/heartbeats.h"

#include <algorithm>

#include "kv_connector/pull/read_plan.h"

namespace dormouse::pull {
namespace {

constexpr Clock::duration kShortest = std::chrono::milliseconds(100);
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
  Clock::duration interval = interval_;
  if (const auto left = std::chrono::milliseconds(order.from.lease_left_ms); left.count() > 0)
    interval = std::clamp<Clock::duration>(left / 3, std::min(kShortest, interval_), interval_);
  beats_[order.request] = {std::move(order.from), interval};
  changed_.notify_all();
}

void Heartbeats::stop(RequestId request) {
  const std::lock_guard lock(mutex_);
  beats_.erase(request);
}

std::vector<ReferenceOrder> Heartbeats::stop_all() {
  const std::lock_guard lock(mutex_);
  std::vector<ReferenceOrder> stopped;
  for (auto& [request, beat] : beats_)
    stopped.push_back({request, std::move(beat.reference)});
  beats_.clear();
  return stopped;
}

Clock::duration Heartbeats::shortest_interval() const {
  Clock::duration shortest = interval_;
  for (const auto& [request, beat] : beats_)
    shortest = std::min(shortest, beat.interval);
  return shortest;
}

void Heartbeats::beat() {
  std::unique_lock lock(mutex_);
  Time last = Clock::now();
  while (!stopping_) {
    const Time next = last + shortest_interval();
    const auto sooner = [&] { return stopping_ || last + shortest_interval() < next; };
    if (changed_.wait_until(lock, next, sooner))
      continue;
    last = Clock::now();
    const auto leases = by_port();
    lock.unlock();
    for (const auto& [port, names] : leases)
      send(port, names);
    lock.lock();
  }
}

std::map<std::uint32_t, Heartbeats::Leases> Heartbeats::by_port() const {
  std::map<std::uint32_t, Leases> leases;
  for (const auto& [request, beat] : beats_)
    leases[beat.reference.port].push_back(beat.reference.name);
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

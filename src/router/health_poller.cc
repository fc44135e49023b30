#include "router/health_poller.h"

#include "router/health.h"

namespace dormouse::router {
namespace {

constexpr int kFasterWhenNotReady = 4;

}  // namespace

HealthPoller::HealthPoller(InstancePool& pool, std::string backend_api_key,
                           std::chrono::milliseconds interval)
    : pool_(pool),
      backend_api_key_(std::move(backend_api_key)),
      interval_(interval),
      looks_(pool.size()) {
  for (std::size_t index = 0; index < pool.size(); ++index)
    threads_.emplace_back([this, index] { run(index); });
}

HealthPoller::~HealthPoller() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  for (Look& look : looks_)
    look.call.cancel();
  for (std::thread& thread : threads_)
    thread.join();
}

bool HealthPoller::finds_ready(Role role) {
  std::unique_lock lock(mutex_);
  std::vector<std::uint64_t> before;
  for (std::size_t index = 0; index < looks_.size(); ++index) {
    before.push_back(looks_[index].ended);
    looks_[index].wanted = looks_[index].wanted || pool_.role(index) == role;
  }
  changed_.notify_all();
  changed_.wait(lock, [&] {
    for (std::size_t index = 0; index < looks_.size(); ++index)
      if (pool_.role(index) == role && looks_[index].ended == before[index])
        return stopped_ || pool_.any_ready(role);
    return true;
  });
  return pool_.any_ready(role);
}

void HealthPoller::run(std::size_t index) {
  Look& look = looks_[index];
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    lock.unlock();
    Health health = ask_health(pool_.address(index), backend_api_key_, look.call);
    const bool ready = health.state == InstanceState::kReady;
    std::optional<bool> has_connector;
    if (ready && !pool_.knows_connector(index))
      has_connector = ask_connector(pool_.address(index), backend_api_key_, look.call);
    lock.lock();
    if (stopped_)
      return;
    pool_.set_state(index, health.state, std::move(health.cause));
    if (has_connector)
      pool_.set_connector(index, *has_connector);
    ++look.ended;
    look.wanted = false;  // whoever wants one meanwhile takes this one
    changed_.notify_all();
    changed_.wait_for(lock, ready ? interval_ : interval_ / kFasterWhenNotReady,
                      [&] { return stopped_ || look.wanted; });
  }
}

}  // namespace dormouse::router

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
      calls_(pool.size()) {
  for (std::size_t index = 0; index < pool.size(); ++index)
    threads_.emplace_back([this, index] { run(index); });
}

HealthPoller::~HealthPoller() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  stop_.notify_all();
  for (Cancellation& call : calls_)
    call.cancel();
  for (std::thread& thread : threads_)
    thread.join();
}

void HealthPoller::run(std::size_t index) {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    lock.unlock();
    Health health = ask_health(pool_.address(index), backend_api_key_, calls_[index]);
    const bool ready = health.state == InstanceState::kReady;
    std::optional<bool> has_connector;
    if (ready && !pool_.knows_connector(index))
      has_connector = ask_connector(pool_.address(index), backend_api_key_, calls_[index]);
    lock.lock();
    if (stopped_)
      return;
    pool_.set_state(index, health.state, std::move(health.cause));
    if (has_connector)
      pool_.set_connector(index, *has_connector);
    stop_.wait_for(lock, ready ? interval_ : interval_ / kFasterWhenNotReady,
                   [this] { return stopped_; });
  }
}

}  // namespace dormouse::router

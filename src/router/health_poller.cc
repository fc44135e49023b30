#include "router/health_poller.h"

#include <fmt/core.h>

#include "base/json.h"
#include "router/legs.h"

namespace dormouse::router {
namespace {

constexpr std::chrono::milliseconds kTimeout{2'000};
constexpr int kFasterWhenNotReady = 4;

std::string text_of(const Json* value) {
  return value != nullptr && value->string() != nullptr ? *value->string() : std::string();
}

// What an instance says that answered, but is not ready.
InstanceState state_of(const server::HttpResponse& response, std::string& cause) {
  const auto body = parse_json(response.body);
  const std::string state = body ? text_of(body->find("state")) : "";
  if (response.status != 503 || state.empty()) {
    cause = fmt::format("it answers {} to GET /health/ready", response.status);
    return InstanceState::kGone;
  }
  cause = text_of(body->find("reason"));
  if (state == "starting" || state == "loading")
    return InstanceState::kLoading;
  return state == "draining" || state == "failed" ? InstanceState::kGone : InstanceState::kAsleep;
}

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
    std::string cause;
    const InstanceState state = ask(index, cause);
    lock.lock();
    if (stopped_)
      return;
    pool_.set_state(index, state, std::move(cause));
    stop_.wait_for(lock,
                   state == InstanceState::kReady ? interval_ : interval_ / kFasterWhenNotReady,
                   [this] { return stopped_; });
  }
}

InstanceState HealthPoller::ask(std::size_t index, std::string& cause) {
  auto client = server::HttpClient::connect(pool_.address(index), kTimeout);
  if (!client) {
    cause = client.error().message;
    return InstanceState::kGone;
  }
  const Cancellation::Watch watch(calls_[index], *client);
  const auto response = client->call("GET", "/health/ready", {}, authorization(backend_api_key_));
  if (!response) {
    cause = response.error().message;
    return InstanceState::kGone;
  }
  return response->status == 200 ? InstanceState::kReady : state_of(*response, cause);
}

}  // namespace dormouse::router

#include "router/instance_pool.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"
#include "base/log.h"

namespace dormouse::router {

namespace {

// Whoever refuses kv_transfer_params is asked again now and then: it may be mended by now.
constexpr std::chrono::seconds kRefusalPause(30);

}  // namespace

std::string_view to_string(Role role) {
  return role == Role::kPrefill ? "prefill" : "decode";
}

std::string_view to_string(InstanceState state) {
  switch (state) {
    case InstanceState::kReady:
      return "ready";
    case InstanceState::kAsleep:
      return "asleep";
    case InstanceState::kLoading:
      return "loading";
    case InstanceState::kLocked:
      return "locked";
    case InstanceState::kGone:
      break;
  }
  return "gone";
}

bool Instance::takes_params() const {
  return has_connector != false &&
         (!refused_at || std::chrono::steady_clock::now() - *refused_at > kRefusalPause);
}

InstancePool::Turn::Turn(Turn&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), index_(other.index_) {}

InstancePool::Turn& InstancePool::Turn::operator=(Turn&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(index_, other.index_);
  return *this;
}

InstancePool::Turn::~Turn() {
  if (pool_ == nullptr)
    return;
  const std::lock_guard lock(pool_->mutex_);
  --pool_->instances_[index_].in_flight;
}

const server::Address& InstancePool::Turn::address() const {
  return pool_->address(index_);
}

bool InstancePool::Turn::takes_params() const {
  const std::lock_guard lock(pool_->mutex_);
  return pool_->instances_[index_].takes_params();
}

void InstancePool::Turn::failed(std::optional<InstanceState> state, std::string cause) {
  const std::lock_guard lock(pool_->mutex_);
  ++pool_->instances_[index_].failures;
  if (state)
    pool_->set_state_locked(index_, *state, std::move(cause));
}

void InstancePool::Turn::refused_params(const std::string& words) {
  const std::lock_guard lock(pool_->mutex_);
  ++pool_->instances_[index_].refused_params;
  pool_->instances_[index_].refused_at = std::chrono::steady_clock::now();
  pool_->set_warning_locked(index_, "it refuses kv_transfer_params: " + words);
}

Result<std::vector<Instance>> InstancePool::parse(const std::vector<std::string>& prefill,
                                                  const std::vector<std::string>& decode) {
  std::vector<Instance> instances;
  for (const Role role : {Role::kPrefill, Role::kDecode}) {
    const auto& urls = role == Role::kPrefill ? prefill : decode;
    if (urls.empty())
      return fail(ErrorCode::kInvalidArgument,
                  "name at least one instance with --" + std::string(to_string(role)) + " URL",
                  std::string(to_string(role)));
    for (const std::string& url : urls) {
      Instance instance{.url = url, .role = role};
      DM_TRY_ASSIGN(instance.address, server::parse_url(url));
      instances.push_back(std::move(instance));
    }
  }
  return instances;
}

InstancePool::InstancePool(std::vector<Instance> instances) : instances_(std::move(instances)) {}

InstancePool::Turn InstancePool::take(Role role, Choice choice,
                                      const std::vector<std::size_t>& tried) {
  const std::lock_guard lock(mutex_);
  Instance* best = nullptr;
  std::size_t& next = next_[role == Role::kPrefill ? 0 : 1];
  const auto rank = [choice](const Instance& instance) {
    const bool cannot_pull = choice == Choice::kPullersFirst && !instance.takes_params();
    return std::tuple(instance.state != InstanceState::kReady, cannot_pull, instance.in_flight);
  };
  for (std::size_t i = 0; i < instances_.size(); ++i) {
    const std::size_t index = (next + i) % instances_.size();
    Instance& instance = instances_[index];
    if (instance.role != role || std::ranges::find(tried, index) != tried.end() ||
        (role == Role::kPrefill &&
         !(instance.takes_params() && has_puller_locked(instance.address))) ||
        (choice == Choice::kReadyOnly && instance.state != InstanceState::kReady))
      continue;
    if (best == nullptr || rank(instance) < rank(*best))
      best = &instance;
  }
  if (best == nullptr)
    return {};
  const auto index = static_cast<std::size_t>(best - instances_.data());
  next = index + 1;
  ++best->in_flight;
  ++best->requests;
  return {*this, index};
}

void InstancePool::set_state(std::size_t index, InstanceState state, std::string cause) {
  const std::lock_guard lock(mutex_);
  set_state_locked(index, state, std::move(cause));
}

void InstancePool::set_state_locked(std::size_t index, InstanceState state, std::string cause) {
  Instance& instance = instances_[index];
  const bool is_bad = state == InstanceState::kGone || state == InstanceState::kLocked;
  if (instance.state != state)
    log(is_bad ? LogLevel::kWarning : LogLevel::kInfo, "router",
        "instance url={} role={} state={} cause=\"{}\"", instance.url, to_string(instance.role),
        to_string(state), cause);
  instance.state = state;
  instance.cause = std::move(cause);
  if (state != InstanceState::kGone)
    return;
  instance.warning.clear();
  instance.has_connector.reset();
  instance.refused_at.reset();
}

bool InstancePool::knows_connector(std::size_t index) const {
  const std::lock_guard lock(mutex_);
  return instances_[index].has_connector.has_value();
}

void InstancePool::set_connector(std::size_t index, bool has_one) {
  const std::lock_guard lock(mutex_);
  instances_[index].has_connector = has_one;
  if (!has_one)
    set_warning_locked(index,
                       "it has no KV connector, and computes every prompt itself; start it with "
                       "--kv-transfer-config");
}

void InstancePool::set_warning_locked(std::size_t index, std::string warning) {
  Instance& instance = instances_[index];
  if (instance.warning.empty())
    log(LogLevel::kWarning, "router", "instance is misconfigured url={} role={} warning=\"{}\"",
        instance.url, to_string(instance.role), warning);
  instance.warning = std::move(warning);
}

bool InstancePool::any_ready(Role role) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(instances_, [role](const Instance& instance) {
    return instance.role == role && instance.state == InstanceState::kReady;
  });
}

bool InstancePool::has_puller_locked(const server::Address& prefill) const {
  return std::ranges::any_of(instances_, [&](const Instance& instance) {
    return instance.role == Role::kDecode && instance.state == InstanceState::kReady &&
           instance.takes_params() && instance.address != prefill;
  });
}

std::vector<std::size_t> InstancePool::decoders_at(const server::Address& address) const {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < instances_.size(); ++i)
    if (instances_[i].role == Role::kDecode && instances_[i].address == address)
      found.push_back(i);
  return found;
}

std::vector<Instance> InstancePool::snapshot() const {
  const std::lock_guard lock(mutex_);
  return instances_;
}

}  // namespace dormouse::router

#include "kv_connector/pull/puller.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "kv_connector/pull/read_plan.h"
#include "kv_connector/pull/release_wait.h"

namespace dormouse::pull {
namespace {

constexpr std::string_view kFolder = "kv_connector";
constexpr std::chrono::seconds kReleasePatience(1);

tl::unexpected<Error> unreached(const RemoteReference& from, const Error& error) {
  return fail(error.code, fmt::format("peer {}:{}: {}", from.host, from.port, error.message));
}

}  // namespace

Puller::Puller(Options options, TransferAgent& agent, PeerTable& peers, Heartbeats& heartbeats)
    : options_(std::move(options)), agent_(agent), peers_(peers), heartbeats_(heartbeats) {
  for (std::uint32_t i = 0; i < options_.threads; ++i)
    threads_.emplace_back([this] { work(); });
}

Puller::~Puller() {
  cancel_all();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_)
    thread.join();
}

void Puller::load(PullOrder order) {
  auto job = std::make_shared<Job>();
  job->order = std::move(order);
  job->deadline = Clock::now() + options_.timeout;
  submit(std::move(job));
}

void Puller::give_back(ReferenceOrder order) {
  auto job = std::make_shared<Job>();
  job->order.request = order.request;
  job->order.from = std::move(order.from);
  job->loads = false;
  submit(std::move(job));
}

void Puller::submit(std::shared_ptr<Job> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void Puller::cancel(RequestId request) {
  const std::lock_guard lock(mutex_);
  for (const auto& job : jobs_) {
    if (job->order.request == request)
      cancel(*job);
  }
}

void Puller::cancel_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& job : jobs_)
    cancel(*job);
}

// One that no thread has taken is over at once; what is left of it is to give the blocks back.
void Puller::cancel(Job& job) {
  if (!job.loads)
    return;
  job.cancelled = true;
  if (job.taken)
    return;
  outcomes_.push_back({job.order.request, job.order.local_blocks, ""});
  job.loads = false;
}

Status Puller::wait_idle(const Unmapping& unmapping) const {
  return await(unmapping, [this] {
    const std::lock_guard lock(mutex_);
    return jobs_.empty();
  });
}

Status Puller::settle(const Unmapping& unmapping) const {
  return await(unmapping, [this] {
    const std::lock_guard lock(mutex_);
    return reading_ == 0;
  });
}

std::vector<Puller::Outcome> Puller::take_outcomes() {
  const std::lock_guard lock(mutex_);
  return std::exchange(outcomes_, {});
}

void Puller::forget_outcomes() {
  const std::lock_guard lock(mutex_);
  outcomes_.clear();
  for (const auto& job : jobs_)
    job->wanted = false;
}

Puller::Counters Puller::counters() const {
  const std::lock_guard lock(mutex_);
  Counters counters = counters_;
  counters.under_way = jobs_.size();
  return counters;
}

void Puller::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || next_job() != nullptr; });
    if (stopping_)
      return;
    const std::shared_ptr<Job> job = next_job();
    job->taken = true;
    const bool loads = job->loads;
    lock.unlock();
    const Status loaded = loads ? load(*job) : Status();
    const bool told = (loads && loaded) || tell_release(*job, !loads);
    heartbeats_.stop(job->order.request);
    lock.lock();
    counters_.unsent += told ? 0 : 1;
    if (loads && job->wanted)
      outcomes_.push_back(outcome_of(*job, loaded));
    jobs_.remove(job);
    changed_.notify_all();
  }
}

std::shared_ptr<Puller::Job> Puller::next_job() const {
  const auto job = std::ranges::find_if(jobs_, [](const auto& next) { return !next->taken; });
  return job == jobs_.end() ? nullptr : *job;
}

// Under the mutex.
Puller::Outcome Puller::outcome_of(const Job& job, const Status& loaded) {
  if (loaded) {
    ++counters_.completed;
    counters_.tokens += job.order.num_tokens;
    counters_.blocks += job.order.local_blocks.size();
    return {job.order.request, {}, ""};
  }
  if (job.cancelled)
    return {job.order.request, job.order.local_blocks, ""};
  ++counters_.failed;
  log(LogLevel::kWarning, kFolder, "load failed request={} engine={}: {}", job.order.request,
      job.order.from.engine_id, loaded.error().message);
  return {job.order.request, job.order.local_blocks, loaded.error().message};
}

Status Puller::load(Job& job) {
  PullAttempt last = attempt(job);
  if (last.again && !job.cancelled && Clock::now() < job.deadline)
    last = attempt(job);
  return last.status;
}

PullAttempt Puller::attempt(Job& job) {
  const std::uint32_t port = job.order.from.port;
  const auto peer = peers_.get(port, job.deadline);
  if (!peer)
    return {unreached(job.order.from, peer.error())};
  PullAttempt attempt{check_peer(**peer, job.order, options_.target.shape), true};
  for (const RankMetadata& owner : (*peer)->ranks()) {
    if (!attempt.status || !reads_from(owner) || job.done.contains(owner.rank))
      continue;
    attempt = pull_rank(job, **peer, owner);
    if (attempt.status)
      job.done.insert(owner.rank);
  }
  if (!attempt.status && attempt.again)
    peers_.forget(port, *peer);
  return attempt;
}

PullAttempt Puller::pull_rank(Job& job, Peer& peer, const RankMetadata& owner) {
  const auto connection = peer.connection(owner.rank, job.deadline);
  if (!connection)
    return {unreached(job.order.from, connection.error()),
            connection.error().code == ErrorCode::kUnavailable};
  if (!begin_reading(job))
    return {fail(ErrorCode::kCancelled, "the load was cancelled")};
  PullAttempt attempt = pull_from(peer, owner, job.order, options_.target, **connection, agent_,
                                  {job.deadline, &job.cancelled});
  end_reading(attempt);
  return attempt;
}

bool Puller::begin_reading(const Job& job) {
  const std::lock_guard lock(mutex_);
  if (job.cancelled)
    return false;
  ++reading_;
  return true;
}

void Puller::end_reading(const PullAttempt& attempt) {
  const std::lock_guard lock(mutex_);
  --reading_;
  counters_.mismatches += attempt.mismatch ? 1 : 0;
  if (attempt.status)
    counters_.transfers.note(attempt.took);
}

bool Puller::reads_from(const RankMetadata& owner) const {
  return !common_heads(heads_of(options_.target.shape), heads_of(owner.shape)).empty();
}

// As well as it goes: a lease that nobody gives back expires.
bool Puller::tell_release(const Job& job, bool dial) {
  const Time deadline = Clock::now() + kReleasePatience;
  const RemoteReference& from = job.order.from;
  auto peer = peers_.known(from.port);
  if (peer == nullptr && dial)
    peer = peers_.get(from.port, deadline).value_or(nullptr);
  if (peer == nullptr)
    return false;
  bool told = true;
  for (const RankMetadata& owner : peer->ranks()) {
    if (!reads_from(owner))
      continue;
    const auto connection = peer->connection(owner.rank, deadline);
    const Release release{from.name, heads_of(options_.target.shape)};
    told = connection && (*connection)->post(release, deadline) && told;
  }
  return told;
}

}  // namespace dormouse::pull

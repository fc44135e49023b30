#include "kv_connector/pull/puller.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace dormouse::pull {
namespace {

constexpr std::string_view kFolder = "kv_connector";
constexpr std::chrono::seconds kReleasePatience(1);
constexpr std::chrono::milliseconds kCancelLatency(20);

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

void Puller::set_cache(std::span<std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  cache_ = bytes;
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
  job->deadline = Clock::now() + kReleasePatience;
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
  job.deadline = Clock::now() + kReleasePatience;
}

bool Puller::wait_idle(Time deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [this] { return jobs_.empty(); });
}

bool Puller::settle(Time deadline, const std::atomic<bool>* cancelled) {
  std::unique_lock lock(mutex_);
  while (reading_ > 0 && Clock::now() < deadline && !(cancelled != nullptr && cancelled->load()))
    changed_.wait_until(lock, std::min(deadline, Clock::now() + kCancelLatency));
  return reading_ == 0;
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
  Attempt last = attempt(job);
  if (last.again && !job.cancelled && Clock::now() < job.deadline)
    last = attempt(job);
  return last.status;
}

Puller::Attempt Puller::attempt(Job& job) {
  const RemoteReference& from = job.order.from;
  const auto peer = peers_.get(from.port, job.deadline);
  if (!peer)
    return {tl::unexpected(peer.error())};
  if (Status checked = check_peer(**peer, job.order); !checked) {
    peers_.forget(from.port, *peer);
    return {std::move(checked), true};
  }
  for (const RankMetadata& owner : (*peer)->ranks()) {
    if (common_heads(options_.shape, owner.shape).empty())
      continue;
    Attempt pulled = pull_rank(job, **peer, owner);
    if (pulled.again)
      peers_.forget(from.port, *peer);
    if (!pulled.status)
      return pulled;
  }
  return {};
}

Status Puller::check_peer(const Peer& peer, const PullOrder& order) const {
  const Meta& meta = peer.meta();
  const RemoteReference& from = order.from;
  if (meta.engine_id != from.engine_id)
    return fail(ErrorCode::kTransferFailed,
                fmt::format("at port {} is engine {}; the blocks are of engine {}", from.port,
                            meta.engine_id, from.engine_id));
  if (meta.model_hash != order.model_hash)
    return fail(ErrorCode::kUnsupported, fmt::format("model_hash differs: {} here, {} at the peer",
                                                     order.model_hash, meta.model_hash));
  for (const RankMetadata& owner : peer.ranks())
    DM_TRY(check_compatible(options_.shape, owner.shape));
  if (from.blocks.size() != order.local_blocks.size())
    return fail(ErrorCode::kTransferFailed,
                fmt::format("the reference has {} blocks of the {} that its tokens need",
                            from.blocks.size(), order.local_blocks.size()));
  return {};
}

Puller::Attempt Puller::pull_rank(Job& job, Peer& peer, const RankMetadata& owner) {
  const auto failed = [](const Error& error) {
    return Attempt{tl::unexpected(error), error.code == ErrorCode::kUnavailable};
  };
  const Time began = Clock::now();
  const Connection::Wait wait{job.deadline, &job.cancelled};
  const auto connection = peer.connection(owner.rank, job.deadline);
  if (!connection)
    return failed(connection.error());
  const auto use = (*connection)->use(wait);
  if (!use)
    return failed(use.error());
  const Meta& meta = peer.meta();
  if (use->generation() != meta.generation || use->incarnation() != meta.incarnation)
    return {fail(ErrorCode::kUnavailable, "the peer has another generation by now"), true};
  const auto answer = ask_grant(job, owner, **connection);
  if (!answer)
    return failed(answer.error());
  if (const auto* refusal = std::get_if<Refused>(&answer->body))
    return refused(*refusal, peer, job.order.from);
  const Granted& granted = std::get<Granted>(answer->body);
  const Time posted = Clock::now();
  const auto spans =
      plan_reads({options_.shape, options_.num_blocks}, cache_.data(),
                 {owner.shape, owner.num_blocks}, job.order.local_blocks, job.order.from.blocks);
  if (!spans)
    return {tl::unexpected(spans.error())};
  if (Status copied = copy(job, *use, owner, *spans, granted); !copied)
    return {std::move(copied)};
  if (const Status confirmed = confirm(**connection, granted, wait); !confirmed)
    return failed(confirmed.error());
  const std::lock_guard lock(mutex_);
  counters_.transfers.note(posted - began, Clock::now() - posted, *spans);
  return {};
}

Result<Puller::Grant> Puller::ask_grant(const Job& job, const RankMetadata& owner,
                                        Connection& connection) const {
  const RemoteReference& from = job.order.from;
  DM_TRY_ASSIGN(const net::Message answer,
                connection.call(Pull{.name = from.name,
                                     .incarnation = from.incarnation,
                                     .generation = from.generation,
                                     .model_hash = job.order.model_hash,
                                     .blocks = from.blocks,
                                     .first_block = job.order.first_block,
                                     .first_kv_head = options_.shape.first_kv_head,
                                     .last_kv_head = options_.shape.last_kv_head,
                                     .consumer = consumer_of(owner),
                                     .verify = options_.verify,
                                     .prompt_hash = job.order.prompt_hash},
                                {job.deadline, &job.cancelled}));
  return Grant::decode(answer.bytes);
}

// A reference that is stale stays so; but if it was our picture of the peer, a handshake helps.
Puller::Attempt Puller::refused(const Refused& refusal, const Peer& peer,
                                const RemoteReference& from) {
  const Meta& meta = peer.meta();
  const bool moved =
      refusal.incarnation != meta.incarnation || refusal.generation != meta.generation;
  return {fail(ErrorCode::kTransferFailed,
               fmt::format("engine {} refused the pull ({}): the blocks are of generation "
                           "{} of incarnation {}, the engine is at generation {} of {}",
                           meta.engine_id, refusal.kind, from.generation, from.incarnation,
                           refusal.generation, refusal.incarnation)),
          moved};
}

Status Puller::copy(Job& job, const Connection::Use& use, const RankMetadata& owner,
                    std::span<const ReadSpan> spans, const Granted& granted) {
  if (!begin_reading(job))
    return fail(ErrorCode::kCancelled, "the load was cancelled");
  const Status copied = read(job, use, owner, spans, granted);
  const std::lock_guard lock(mutex_);
  --reading_;
  changed_.notify_all();
  return copied;
}

bool Puller::begin_reading(const Job& job) {
  const std::lock_guard lock(mutex_);
  if (job.cancelled)
    return false;
  ++reading_;
  return true;
}

Status Puller::read(Job& job, const Connection::Use& use, const RankMetadata& owner,
                    std::span<const ReadSpan> spans, const Granted& granted) {
  DM_TRY(agent_.read(use.memory(), spans, {.deadline = job.deadline, .cancelled = &job.cancelled}));
  if (options_.verify)
    DM_TRY(compare(job, owner, granted));
  return {};
}

Status Puller::compare(const Job& job, const RankMetadata& owner, const Granted& granted) {
  const HeadRange heads = common_heads(options_.shape, owner.shape);
  const auto& blocks = job.order.local_blocks;
  if (granted.hashes.size() != blocks.size())
    return fail(ErrorCode::kDataLoss, "the peer sent no checksum for each block");
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::byte* block = cache_.data() + blocks[i] * options_.shape.block_bytes();
    if (hash_heads(options_.shape, block, heads) == granted.hashes[i])
      continue;
    const std::lock_guard lock(mutex_);
    ++counters_.mismatches;
    return fail(ErrorCode::kDataLoss, fmt::format("the checksum of block {} differs from that of "
                                                  "the peer's block {}",
                                                  blocks[i], job.order.from.blocks[i]));
  }
  return {};
}

Status Puller::confirm(Connection& connection, const Granted& granted, Connection::Wait wait) {
  DM_TRY_ASSIGN(const net::Message answer, connection.call(Pulled{granted.grant}, wait));
  DM_TRY_ASSIGN(const auto confirmed, AnyMessage<Confirmed>::decode(answer.bytes));
  if (!std::get<Confirmed>(confirmed.body).alive)
    return fail(ErrorCode::kTransferFailed, "the lease ended while its blocks were read");
  return {};
}

Consumer Puller::consumer_of(const RankMetadata& owner) const {
  return {options_.self.rank, ranks_reading(owner.shape, options_.self.ranks)};
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
    if (common_heads(options_.shape, owner.shape).empty())
      continue;
    const auto connection = peer->connection(owner.rank, deadline);
    told = connection &&
           (*connection)->post(Release{from.name, consumer_of(owner)}, deadline).has_value() &&
           told;
  }
  return told;
}

}  // namespace dormouse::pull

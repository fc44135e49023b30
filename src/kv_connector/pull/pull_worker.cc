#include "kv_connector/pull/pull_worker.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kv_connector/pull/read_plan.h"

namespace dormouse::pull {
namespace {

constexpr std::chrono::milliseconds kGiveBackTime(500);  // for telling owners, at the most

// An owner's lease ends once its heads were pulled, by whichever rank.
Status check_heads(const KvConnectorContext& context) {
  const HeadRange heads = heads_of(context.shape);
  if (context.config.kv_role == KvRole::kProducer ||
      context.world_size * (heads.last - heads.first) <= context.shape.num_kv_heads)
    return {};
  return fail(
      ErrorCode::kUnsupported,
      fmt::format("rank {} of {} has the KV heads {} of {}: heads that several ranks have "
                  "cannot be pulled",
                  context.rank, context.world_size, to_string(heads), context.shape.num_kv_heads));
}

}  // namespace

Result<std::unique_ptr<PullWorker>> PullWorker::create(const KvConnectorContext& context,
                                                       std::string name, MakeAgent make_agent) {
  DM_TRY_ASSIGN(PullConfig config, read_pull_config(context.config));
  DM_TRY(check_heads(context));
  DM_TRY_ASSIGN(net::MeetingPlace place, meeting_place(config));
  return std::unique_ptr<PullWorker>(new PullWorker(context, std::move(name), std::move(config),
                                                    std::move(place), std::move(make_agent)));
}

PullWorker::PullWorker(const KvConnectorContext& context, std::string name, PullConfig config,
                       net::MeetingPlace place, MakeAgent make_agent)
    : context_(context),
      name_(std::move(name)),
      config_(std::move(config)),
      place_(std::move(place)),
      make_agent_(std::move(make_agent)) {}

PullWorker::~PullWorker() {
  shutdown();
}

Status PullWorker::register_kv_caches(const KvCaches& caches) {
  DM_CHECK(caches.driver != nullptr && agent_ == nullptr, "a cache is registered once");
  agent_ = make_agent_(*caches.driver, context_.threads);
  if (context_.config.kv_role != KvRole::kConsumer)
    DM_TRY(serve_owners_side());
  start_loading(caches.bytes);
  return restore_kv_caches(caches);
}

Status PullWorker::serve_owners_side() {
  const std::string path = rank_socket(place_.directory, context_.config.kv_port, context_.rank);
  DM_TRY_ASSIGN(endpoint_, Endpoint::start({.connector = name_,
                                            .path = path,
                                            .token = place_.token,
                                            .incarnation = context_.incarnation,
                                            .shape = context_.shape,
                                            .times = config_.lease_times()},
                                           *agent_));
  return {};
}

void PullWorker::start_loading(std::span<std::byte> cache) {
  const KvShape& shape = context_.shape;
  peers_ = std::make_unique<PeerTable>(
      Dialling{place_.directory, place_.token, context_.config.engine_id}, *agent_);
  heartbeats_ =
      std::make_unique<Heartbeats>(*peers_, heads_of(shape), config_.heartbeat_interval());
  puller_ =
      std::make_unique<Puller>(Puller::Options{.target = {.shape = shape,
                                                          .num_blocks = context_.num_blocks,
                                                          .cache = cache,
                                                          .verify = context_.config.verify_kv},
                                               .timeout = config_.pull_timeout,
                                               .threads = config_.num_threads},
                               *agent_, *peers_, *heartbeats_);
}

void PullWorker::bind_connector_metadata(const std::string& metadata) {
  auto orders = decode_orders(metadata);
  DM_CHECK(orders, "the scheduler half's orders can be read: " + orders.error().message);
  orders_ = std::move(*orders);
}

void PullWorker::start_load_kv() {
  Orders orders = std::exchange(orders_, {});
  for (LeaseOrder& lease : orders.leases) {
    if (endpoint_ != nullptr)
      endpoint_->add_lease(std::move(lease));
  }
  for (ReferenceOrder& order : orders.heartbeats)
    heartbeats_->start(std::move(order));
  for (PullOrder& order : orders.pulls)
    puller_->load(std::move(order));
  for (const RequestId request : orders.cancels)
    puller_->cancel(request);
  for (ReferenceOrder& order : orders.releases) {
    heartbeats_->stop(order.request);
    puller_->give_back(std::move(order));
  }
}

void PullWorker::get_finished(const RequestIds&, KvConnectorOutput& output) {
  if (endpoint_ != nullptr) {
    for (const RequestId request : endpoint_->take_ended())
      output.finished_sending.push_back(request);
  }
  for (const Puller::Outcome& outcome : puller_->take_outcomes()) {
    output.finished_recving.push_back(outcome.request);
    output.invalid_block_ids.insert(output.invalid_block_ids.end(), outcome.invalid_blocks.begin(),
                                    outcome.invalid_blocks.end());
    if (output.failure.empty())
      output.failure = outcome.failure;
  }
}

std::string PullWorker::get_handshake_metadata() {
  return encode_message(RankMetadata{.rank = context_.rank,
                                     .num_blocks = context_.num_blocks,
                                     .generation = generation_,
                                     .shape = context_.shape});
}

Status PullWorker::release_kv_caches(Unmapping& unmapping) {
  const Time began = Clock::now();
  return_leases();  // first: loads may end while importers are waited for
  if (endpoint_ != nullptr)
    DM_TRY(endpoint_->release(unmapping));
  return let_go_of_peers(unmapping, began);
}

// A load writes into the cache: without its end nothing may be unmapped, whoever forces it.
Status PullWorker::let_go_of_peers(const Unmapping& unmapping, Time began) {
  const Status ended = [&]() -> Status {
    const Unmapping brief{.deadline = std::min(unmapping.deadline, began + kGiveBackTime),
                          .cancelled = unmapping.cancelled};
    if (const Status told = puller_->wait_idle(brief);
        !told && told.error().code == ErrorCode::kCancelled)
      return told;
    DM_TRY(peers_->drop_all(unmapping));
    return puller_->settle(unmapping);
  }();
  if (ended)
    return {};
  if (ended.error().code == ErrorCode::kCancelled)
    return fail(
        ErrorCode::kCancelled,
        fmt::format("{}: cancelled while loads under way were awaited; nothing was unmapped",
                    name_));
  return fail(ended.error().code,
              fmt::format("{}: a load under way did not end within {} ms; nothing was unmapped",
                          name_, count_milliseconds(Clock::now() - began)));
}

void PullWorker::return_leases() {
  for (ReferenceOrder& order : heartbeats_->stop_all())
    puller_->give_back(std::move(order));
  puller_->cancel_all();
}

Status PullWorker::restore_kv_caches(const KvCaches& caches) {
  if (endpoint_ != nullptr)
    DM_TRY(endpoint_->open(caches));
  if (caches.generation != generation_) {
    puller_->forget_outcomes();
    if (endpoint_ != nullptr)
      endpoint_->take_ended();
  }
  generation_ = caches.generation;
  return {};
}

KvConnectorStats PullWorker::get_kv_connector_stats() const {
  if (puller_ == nullptr)
    return {};
  const auto number = [](std::uint64_t value) { return static_cast<double>(value); };
  const Puller::Counters loads = puller_->counters();
  const PeerTable::Counters peers = peers_->counters();
  KvConnectorStats stats = {
      {"kv_generation", number(generation_)},
      {"kv_completed_pulls_total", number(loads.completed)},
      {"kv_pulled_tokens_total", number(loads.tokens)},
      {"kv_transferred_blocks_total", number(loads.blocks)},
      {"kv_transferred_bytes_total", loads.transfers.bytes()},
      {"kv_failed_transfers_total", number(loads.failed)},
      {"kv_failed_notifications_total", number(loads.unsent)},
      {"kv_verify_mismatches_total", number(loads.mismatches)},
      {"kv_transfers_active", number(loads.under_way)},
      {"kv_handshakes_total", number(peers.handshakes)},
      {"kv_pins", number(peers.mappings)},
  };
  loads.transfers.append_to(stats);
  if (endpoint_ == nullptr)
    return stats;
  const Endpoint::Counters owner = endpoint_->counters();
  std::uint64_t stale = 0;
  for (const Refusal refusal : kRefusals) {
    const std::uint64_t count = owner.leases.refused[static_cast<std::size_t>(refusal)];
    stale += refusal == Refusal::kUnavailable ? 0 : count;
    stats.emplace_back(fmt::format("kv_references_refused_{}_total", to_string(refusal)),
                       number(count));
  }
  stats.insert(stats.end(), {{"kv_stale_references_refused_total", number(stale)},
                             {"kv_registrations", owner.registered ? 1 : 0},
                             {"kv_importers", number(owner.importers)},
                             {"kv_leases_active", number(owner.active_leases)},
                             {"kv_granted_pulls_total", number(owner.leases.granted)},
                             {"kv_expired_leases_total", number(owner.leases.expired)},
                             {"kv_revocations_total", number(owner.revocations)},
                             {"kv_pinned_bytes", number(owner.pinned_bytes)}});
  return stats;
}

void PullWorker::shutdown() {
  if (puller_ == nullptr)
    return;
  return_leases();
  (void)puller_->wait_idle({.deadline = Clock::now() + kGiveBackTime});
  peers_->shut_down();
  puller_.reset();
  heartbeats_.reset();
  peers_.reset();
  endpoint_.reset();
}

}  // namespace dormouse::pull

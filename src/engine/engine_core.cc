#include "engine/engine_core.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "base/log.h"
#include "base/secret.h"
#include "executor/uniproc_executor.h"
#include "kv_connector/registry.h"
#include "protocol/connector_stats.h"

namespace dormouse {

namespace {

using std::chrono::microseconds;
constexpr microseconds kLoadPoll{500};
constexpr microseconds kSendPoll{10'000};
constexpr microseconds kIdlePoll{250'000};

}  // namespace

std::unique_ptr<Engine> Engine::start(EngineConfig config) {
  return std::make_unique<EngineCore>(std::move(config), [](const EngineConfig& wanted) {
    return std::make_unique<UniprocExecutor>(wanted);
  });
}

namespace {

constexpr std::size_t kIdentityBytes = 16;

EngineConfig identified(EngineConfig config) {
  if (config.incarnation.empty())
    config.incarnation = random_hex(kIdentityBytes);
  if (config.kv_transfer.engine_id.empty())
    config.kv_transfer.engine_id = random_hex(kIdentityBytes);
  return config;
}

}  // namespace

EngineCore::EngineCore(EngineConfig config, const ExecutorFactory& make_executor)
    : config_(identified(std::move(config))), executor_(make_executor(config_)) {
  status_.model_path = config_.model;
  status_.served_model_name = config_.served_model_name.empty()
                                  ? std::filesystem::path(config_.model).stem().string()
                                  : config_.served_model_name;
  thread_ = std::thread([this] { run(); });
}

EngineCore::~EngineCore() {
  shutdown(std::chrono::milliseconds(0));
}

EngineState EngineCore::current_state() const {
  const std::lock_guard lock(mutex_);
  return lifecycle_.state();
}

Status EngineCore::load() {
  change_state([](Lifecycle& lifecycle) { lifecycle.begin_loading(); });
  if (config_.enable_sleep_mode)
    DM_TRY(check_sleep_supported(config_.kv_transfer));
  DM_TRY_ASSIGN(const format::GgufFile file, format::GgufFile::open(config_.model));
  DM_TRY_ASSIGN(ModelText model_text, read_model_text(file));
  const LoadControl control{.progress =
                                [this](std::uint64_t done, std::uint64_t total) {
                                  const std::lock_guard lock(mutex_);
                                  status_.load_progress =
                                      static_cast<double>(done) / static_cast<double>(total);
                                },
                            .cancelled = cancel_load_};
  DM_TRY_ASSIGN(const ModelFacts facts, executor_->load(control));
  if (model_text.tokenizer->vocab_size() != facts.vocab_size)
    return fail(ErrorCode::kDataLoss,
                fmt::format("{}: the tokenizer has {} tokens, the embedding {} rows", config_.model,
                            model_text.tokenizer->vocab_size(), facts.vocab_size));
  for (std::uint32_t token = 0; token < facts.vocab_size; ++token)
    if (model_text.tokenizer->is_end_of_generation(static_cast<TokenId>(token)))
      end_tokens_.push_back(static_cast<TokenId>(token));

  {
    const std::lock_guard lock(mutex_);
    facts_ = facts;
    status_.kernel = facts.kernel;
    status_.max_model_len = facts.max_model_len;
  }
  DM_TRY(start_connector());
  pool_ = std::make_unique<BlockPool>(facts.num_blocks);
  scheduler_ = std::make_unique<Scheduler>(
      SchedulerConfig{.max_num_seqs = config_.max_num_seqs,
                      .max_num_batched_tokens = config_.max_num_batched_tokens,
                      .block_size = config_.block_size,
                      .max_model_len = facts.max_model_len,
                      .enable_prefix_caching = config_.enable_prefix_caching,
                      .end_of_generation = end_tokens_,
                      .kv_load_failure_policy = config_.kv_transfer.kv_load_failure_policy,
                      .world_size = static_cast<std::uint32_t>(facts.world_size)},
      *pool_, connector_.get());
  const std::lock_guard lock(mutex_);
  text_ = std::move(model_text);
  return {};
}

void EngineCore::run() {
  Status loaded = load();
  if (loaded) {
    const RankState ranks = ask_ranks();
    change_state([&](Lifecycle& lifecycle) { lifecycle.finish_loading(ranks); });
    settle(ranks);
    publish_handshake(ranks);
  } else {
    log(LogLevel::kError, "engine", "load failed: {}", loaded.error().message);
    change_state([&](Lifecycle& lifecycle) { lifecycle.set_failed(loaded.error().message); });
  }
  publish();
  loaded_.notify_all();

  while (!finished_shutting_down()) {
    take_inbox();
    advance_controls();
    publish();
    if (may_step() && scheduler_->has_unfinished()) {
      step();
    } else {
      poll_connector();
      wait_for_work();
    }
  }
  if (scheduler_)
    deliver(scheduler_->abort_all());
  if (connector_) {
    connector_->shutdown();
    scheduler_->drop_transfers();
  }
  publish();
}

bool EngineCore::may_step() const {
  const std::lock_guard lock(mutex_);
  return lifecycle_.admits(Lifecycle::Work::kStep).has_value();
}

void EngineCore::step() {
  const StepPlan plan = scheduler_->plan();
  const bool computes = !plan.sequences.empty();
  if (!computes && !plan.polls_connector)
    return wait_for_work();
  if (computes)
    note_step(plan);
  const std::size_t loads = scheduler_->transfers().loads;
  auto result = executor_->execute(plan, end_tokens_);
  if (result) {
    take_connector_outputs(*result);
    std::vector<RequestOutput> outputs = scheduler_->complete(plan, *result);
    // The ranks know a lease before whoever got its token can come for the blocks.
    if (scheduler_->connector_waits())
      poll_connector();
    deliver(std::move(outputs));
    if (!computes && scheduler_->transfers().loads == loads)
      wait_for_work();
    return;
  }
  log(LogLevel::kError, "engine", "step={} failed: {}", plan.step, result.error().message);
  deliver(scheduler_->fail_step(plan, result.error()));
}

void EngineCore::note_step(const StepPlan& plan) {
  const auto now = Clock::now();
  for (const ScheduledSequence& sequence : plan.sequences)
    if (const auto caller = callers_.find(sequence.id);
        caller != callers_.end() && !caller->second.computed)
      caller->second.computed = now;
  const std::lock_guard lock(mutex_);
  ++counters_.steps;
  counters_.step_tokens.observe(plan.total_tokens);
}

RequestTimes EngineCore::Caller::times_until(Clock::time_point now) const {
  const auto seconds = [](Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  };
  const auto first_computed = computed.value_or(now);
  const auto first_token = answered.value_or(now);
  return {.queued = seconds(arrived, first_computed),
          .prefill = seconds(first_computed, first_token),
          .decode = seconds(first_token, now)};
}

// Publishes first: whoever sees its last event finds its blocks given back.
void EngineCore::deliver(std::vector<RequestOutput> outputs) {
  publish();
  const auto now = Clock::now();
  for (RequestOutput& output : outputs) {
    const auto found = callers_.find(output.id);
    if (found == callers_.end())
      continue;
    Caller& caller = found->second;
    if (!output.tokens.empty() && !caller.answered)
      caller.answered = now;
    if (!output.finished) {
      caller.sink(std::move(output));
      continue;
    }
    output.times = caller.times_until(now);
    const OutputSink sink = std::move(caller.sink);
    callers_.erase(found);
    sink(std::move(output));
  }
}

void EngineCore::take_inbox() {
  std::deque<Arrival> arrivals;
  std::vector<RequestId> aborts;
  bool everything = false;
  {
    const std::lock_guard lock(mutex_);
    arrivals.swap(arrivals_);
    aborts.swap(aborts_);
    everything = std::exchange(abort_everything_, false);
  }
  if (!scheduler_)
    return;
  for (Arrival& arrival : arrivals) {
    callers_.emplace(arrival.id, Caller{std::move(arrival.sink), arrival.arrived});
    if (Status added = scheduler_->add(arrival.id, std::move(arrival.request)); !added)
      deliver({{.id = arrival.id, .finished = FinishReason::kError, .error = added.error()}});
  }
  for (const RequestId id : aborts)
    if (auto output = scheduler_->abort(id))
      deliver({std::move(*output)});
  if (everything)
    deliver(scheduler_->abort_all());
}

void EngineCore::wait_for_work() {
  std::unique_lock lock(mutex_);
  const auto something = [&] {
    return !arrivals_.empty() || !aborts_.empty() || abort_everything_ || shutdown_deadline_ ||
           (active_ ? active_->cancelled.load() : !controls_.empty());
  };
  if (const auto turn = next_turn())
    wake_.wait_until(lock, *turn, something);
  else
    wake_.wait(lock, something);
}

std::optional<EngineCore::Clock::time_point> EngineCore::next_turn() const {
  const auto deadline = drain_deadline();
  if (!connector_ || !scheduler_)
    return deadline;
  const TransfersUnderWay transfers = scheduler_->transfers();
  const auto interval = transfers.loads + transfers.lookups > 0 ? kLoadPoll
                        : transfers.sends > 0                   ? kSendPoll
                                                                : kIdlePoll;
  return std::min(deadline.value_or(Clock::time_point::max()), Clock::now() + interval);
}

bool EngineCore::finished_shutting_down() {
  std::deque<std::shared_ptr<Control>> refused;
  bool finished = false;
  {
    const std::lock_guard lock(mutex_);
    if (!shutdown_deadline_)
      return false;
    refused.swap(controls_);
    const bool idle = arrivals_.empty() && (!scheduler_ || !scheduler_->has_unfinished() ||
                                            !lifecycle_.admits(Lifecycle::Work::kStep));
    finished = !active_ && (idle || Clock::now() >= *shutdown_deadline_);
    if (finished)
      lifecycle_.set_failed("the engine was shut down");
  }
  for (const auto& control : refused)
    control->answer.set_value(fail(ErrorCode::kUnavailable, "The engine is shutting down."));
  if (finished && scheduler_)
    take_inbox();
  return finished;
}

void EngineCore::publish() {
  const std::lock_guard lock(mutex_);
  EngineStatus& status = status_;
  status.state = lifecycle_.state();
  status.cause = lifecycle_.cause();
  status.sleep_level = lifecycle_.level();
  status.tags_asleep = lifecycle_.tags_asleep();
  status.weights_valid = lifecycle_.weights_valid();
  status.is_sleeping = lifecycle_.is_sleeping();
  status.is_paused = lifecycle_.is_paused();
  status.accepts_requests = lifecycle_.admits(Lifecycle::Work::kRequest).has_value();
  status.block_size = config_.block_size;
  if (!scheduler_)
    return;
  status.requests_running = static_cast<std::uint32_t>(scheduler_->num_running());
  status.requests_waiting =
      static_cast<std::uint32_t>(scheduler_->num_unfinished() - scheduler_->num_running());
  status.blocks_total = pool_->total();
  status.blocks_used = pool_->used();
  const SchedulerCounters& from = scheduler_->counters();
  counters_.prompt_tokens = from.prompt_tokens;
  counters_.generation_tokens = from.generation_tokens;
  counters_.prefix_cache_queries = from.prefix_cache_queries;
  counters_.prefix_cache_hits = from.prefix_cache_hits;
  counters_.preemptions = from.preemptions;
  counters_.finished = from.finished;
  counters_.external_cache_queries = from.external_queries;
  counters_.external_cache_hits = from.external_hits;
  counters_.transferred_tokens = from.transferred_tokens;
  counters_.recomputed_tokens = from.recomputed_tokens;
  if (!connector_)
    return;
  const TransfersUnderWay transfers = scheduler_->transfers();
  status.kv_connector = config_.kv_transfer.kv_connector;
  status.engine_id = config_.kv_transfer.engine_id;
  status.kv_loads = static_cast<std::uint32_t>(transfers.loads);
  status.kv_sends = static_cast<std::uint32_t>(transfers.sends);
  counters_.connector = worker_stats_;
  add_stats(counters_.connector, connector_->get_kv_connector_stats());
}

}  // namespace dormouse

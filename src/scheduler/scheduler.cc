#include "scheduler/scheduler.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace dormouse {

namespace {

SchedulerConfig checked(SchedulerConfig config) {
  DM_CHECK(config.max_num_seqs > 0 && config.max_num_batched_tokens > 0 && config.block_size > 0,
           "a scheduler's limits are positive");
  std::ranges::sort(config.end_of_generation);
  return config;
}

}  // namespace

Scheduler::Scheduler(SchedulerConfig config, BlockPool& pool, SchedulerConnector* connector)
    : config_(checked(std::move(config))), pool_(pool), connector_(connector) {}

Scheduler::~Scheduler() {
  for (auto& [id, sequence] : sequences_)
    release_blocks(*sequence);
  for (auto& sequence : retiring_)
    release_blocks(*sequence);
}

Status Scheduler::check_fits(const Request& request) const {
  const std::size_t prompt = request.prompt.size();
  const std::size_t max_tokens = request.sampling.max_tokens;
  if (prompt == 0)
    return fail(ErrorCode::kInvalidArgument, "The prompt is empty; give at least one token.",
                "prompt");
  if (prompt >= config_.max_model_len)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("The prompt has {} tokens, but the context holds {} including at least "
                            "one token of output; shorten the prompt.",
                            prompt, config_.max_model_len),
                "prompt");
  if (max_tokens == 0)
    return fail(ErrorCode::kInvalidArgument, "max_tokens is 0; ask for at least one token.",
                "max_tokens");
  // The last token generated is never computed.
  const std::size_t longest = std::min<std::size_t>(prompt + max_tokens, config_.max_model_len) - 1;
  const std::uint32_t needed = blocks_for(static_cast<std::uint32_t>(longest));
  if (needed > pool_.total())
    return fail(
        ErrorCode::kResourceExhausted,
        fmt::format("The prompt's {} tokens and up to {} of output need {} KV blocks of {} "
                    "tokens, but there are {}; lower max_tokens or enlarge the KV cache.",
                    prompt, longest + 1 - prompt, needed, config_.block_size, pool_.total()),
        "max_tokens");
  return {};
}

Status Scheduler::add(RequestId id, Request request) {
  DM_TRY(check_fits(request));
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->priority = request.priority;
  sequence->arrival = next_arrival_++;
  sequence->sampling = std::make_shared<const SamplingParams>(std::move(request.sampling));
  sequence->tokens = std::move(request.prompt);
  sequence->prompt_length = sequence->length();
  sequence->hashes.push_back(hasher_.root(request.cache_salt));
  sequence->cache_salt = std::move(request.cache_salt);
  sequence->kv_transfer_params = std::move(request.kv_transfer_params);
  const auto [entry, is_new] = sequences_.emplace(id, std::move(sequence));
  DM_CHECK(is_new, "request ids are never reused");
  waiting_.insert(entry->second.get());
  if (connector_ != nullptr)
    connector_->on_new_request(kv_request(*entry->second));
  return {};
}

std::vector<RequestOutput> Scheduler::complete(const StepPlan& plan, const StepResult& result) {
  DM_CHECK(result.step == plan.step, "a result belongs to its step");
  take_connector_outputs(result.connector);
  std::vector<RequestOutput> outputs = fail_invalid_steps(plan);
  auto sampled = result.sampled.begin();
  for (const ScheduledSequence& scheduled : plan.sequences) {
    const GeneratedToken* token = nullptr;
    if (scheduled.samples) {
      DM_CHECK(sampled != result.sampled.end() && sampled->id == scheduled.id,
               "one token for each sequence that samples, in the plan's order");
      token = &(sampled++)->token;
    }
    Sequence* sequence = find(scheduled.id);
    if (sequence == nullptr)
      continue;
    sequence->in_flight = false;
    sequence->unconfirmed = false;
    const std::uint32_t valid = valid_until(*sequence, scheduled.first_position);
    if (valid < scheduled.first_position) {  // computed from what a failed load left
      count_lost(*sequence, sequence->computed - valid);
      sequence->computed = valid;
      forget_invalid(*sequence);
      continue;
    }
    sequence->computed += static_cast<std::uint32_t>(scheduled.tokens.size());
    publish_computed(*sequence);
    if (token != nullptr)
      outputs.push_back(take_token(*sequence, *token));
  }
  for (RequestOutput& output : end_transfers())
    outputs.push_back(std::move(output));
  end_step(plan);
  return outputs;
}

std::vector<RequestOutput> Scheduler::fail_step(const StepPlan& plan, const Error& error) {
  std::vector<RequestOutput> outputs;
  for (const ScheduledSequence& scheduled : plan.sequences)
    if (auto output = finish_error(scheduled.id, error))
      outputs.push_back(std::move(*output));
  end_step(plan);
  return outputs;
}

void Scheduler::end_step(const StepPlan& plan) {
  DM_CHECK(step_in_flight_ && plan.step + 1 == next_step_, "this step is not in flight");
  for (auto& sequence : retiring_)
    sequence->in_flight = false;
  release_unused();
  step_in_flight_ = false;
}

std::optional<RequestOutput> Scheduler::abort(RequestId id) {
  Sequence* sequence = find(id);
  if (sequence == nullptr)
    return std::nullopt;
  RequestOutput output = output_of(*sequence);
  finish(*sequence, FinishReason::kAbort, output);
  return output;
}

std::optional<RequestOutput> Scheduler::finish_error(RequestId id, Error error) {
  Sequence* sequence = find(id);
  if (sequence == nullptr)
    return std::nullopt;
  RequestOutput output = output_of(*sequence);
  output.error = std::move(error);
  finish(*sequence, FinishReason::kError, output);
  return output;
}

std::vector<RequestOutput> Scheduler::abort_all() {
  std::vector<RequestId> ids;
  for (const Queue* queue : {&running_, &loading_, &waiting_})
    for (const Sequence* sequence : *queue)
      ids.push_back(sequence->id);
  std::vector<RequestOutput> outputs;
  for (const RequestId id : ids)
    outputs.push_back(*abort(id));
  return outputs;
}

void Scheduler::preempt_all() {
  DM_CHECK(!step_in_flight_, "a step in flight still writes to its blocks");
  while (!running_.empty())
    preempt(**running_.rbegin());
  for (Sequence* sequence : waiting_)
    release_blocks(*sequence);
}

bool Scheduler::has_unfinished() const {
  if (step_in_flight_)
    return true;
  switch (pause_state_) {
    case PauseState::kUnpaused:
      return !sequences_.empty();
    case PauseState::kPausedNew:
      return !running_.empty() || !loading_.empty() ||
             std::ranges::any_of(waiting_, &Sequence::started);
    case PauseState::kPausedAll:
      return false;
  }
  return false;
}

Sequence* Scheduler::find(RequestId id) {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : found->second.get();
}

RequestOutput Scheduler::take_token(Sequence& sequence, const GeneratedToken& token) {
  if (sequence.generated() == 0)
    counters_.prompt_tokens += sequence.prompt_length;
  ++counters_.generation_tokens;
  sequence.tokens.push_back(token.token);

  RequestOutput output = output_of(sequence);
  output.tokens.push_back(token);
  if (const auto ending = ending_of(sequence, config_.end_of_generation, config_.max_model_len)) {
    output.stop_token = ending->stop_token;
    finish(sequence, ending->reason, output);
  }
  return output;
}

RequestOutput Scheduler::output_of(const Sequence& sequence) const {
  RequestOutput output;
  output.id = sequence.id;
  output.prompt_tokens = sequence.prompt_length;
  output.cached_tokens = sequence.cached_tokens;
  output.preemptions = sequence.preemptions;
  return output;
}

void Scheduler::finish(Sequence& sequence, FinishReason reason, RequestOutput& output) {
  output.finished = reason;
  ++counters_.finished[static_cast<std::size_t>(reason)];
  running_.erase(&sequence);
  waiting_.erase(&sequence);
  loading_.erase(&sequence);
  if (connector_ != nullptr) {
    ended_.push_back(sequence.id);
    KvRequestFinished answer =
        connector_->request_finished(kv_request(sequence, reason), sequence.blocks);
    sequence.sending = answer.delay_free;
    output.kv_transfer_params = std::move(answer.kv_transfer_params);
  }
  retire(std::move(sequences_.extract(sequence.id).mapped()));
}

void Scheduler::retire(std::unique_ptr<Sequence> sequence) {
  if (sequence->in_use())
    retiring_.push_back(std::move(sequence));
  else
    release_blocks(*sequence);
}

void Scheduler::release_unused() {
  const auto unused = std::ranges::stable_partition(retiring_, &Sequence::in_use);
  for (auto& sequence : unused)
    release_blocks(*sequence);
  retiring_.erase(unused.begin(), unused.end());
}

}  // namespace dormouse

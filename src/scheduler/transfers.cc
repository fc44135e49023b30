// Scheduler's half that deals with the KV connector: loads before a request runs, blocks held after
// its end.
#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace dormouse {

StepPlan Scheduler::plan_poll() {
  DM_CHECK(!step_in_flight_ && connector_ != nullptr, "one step is in flight at a time");
  StepPlan plan;
  plan.step = next_step_++;
  attach_connector(plan);
  plan.polls_connector = true;
  step_in_flight_ = true;
  return plan;
}

void Scheduler::attach_connector(StepPlan& plan) {
  if (connector_ == nullptr)
    return;
  const TransfersUnderWay now = transfers();
  const bool waits = connector_->has_pending_work();
  plan.connector_meta = connector_->build_connector_meta();
  plan.finished = std::exchange(ended_, {});
  plan.polls_connector = plan.sequences.empty() && (waits || now.loads + now.sends > 0);
}

Scheduler::Admission Scheduler::start_load(Sequence& sequence, const KvMatch& match) {
  if (connector_ == nullptr || sequence.asked_connector)
    return Admission::kReady;
  sequence.asked_connector = true;
  connector_->update_state_after_alloc(kv_request(sequence), sequence.blocks, match.tokens);
  counters_.external_queries += sequence.length() - sequence.computed;
  counters_.external_hits += match.tokens;
  if (match.tokens == 0)
    return Admission::kReady;
  DM_CHECK(sequence.computed + match.tokens <= sequence.length(),
           "a connector brings no more than the request's tokens");
  sequence.external = match.tokens;
  if (match.load_is_async) {
    sequence.receiving = true;
    return Admission::kLoading;
  }
  sequence.unconfirmed = true;
  const std::uint32_t end = std::min(sequence.computed + match.tokens, sequence.length() - 1);
  count_loaded(sequence, end - sequence.computed);
  sequence.computed = end;
  return Admission::kReady;
}

void Scheduler::count_loaded(Sequence& sequence, std::uint32_t tokens) {
  counters_.transferred_tokens += tokens;
  sequence.cached_tokens += tokens;
  sequence.loaded = tokens;
}

// Of what a load brought last, nothing computed yet, these tokens are of no use.
void Scheduler::count_lost(Sequence& sequence, std::uint32_t tokens) {
  counters_.transferred_tokens -= tokens;
  counters_.recomputed_tokens += tokens;
  sequence.cached_tokens -= tokens;
  sequence.loaded -= tokens;
}

// The beginning of the sequence, up to `end` tokens, that no failed load was to bring.
std::uint32_t Scheduler::valid_until(const Sequence& sequence, std::uint32_t end) const {
  if (invalid_blocks_.empty())
    return end;
  for (std::size_t i = 0; i < sequence.blocks.size(); ++i)
    if (invalid_blocks_.contains(sequence.blocks[i]))
      return std::min(end, static_cast<std::uint32_t>(i) * config_.block_size);
  return end;
}

void Scheduler::forget_invalid(const Sequence& sequence) {
  for (const BlockId block : sequence.blocks)
    invalid_blocks_.erase(block);
}

Error Scheduler::load_failure() const {
  return {ErrorCode::kTransferFailed,
          "The KV cache of the prompt could not be loaded" +
              (load_failure_.empty() ? std::string(".") : ": " + load_failure_)};
}

// Anything else is a late word on a load that has ended.
bool Scheduler::is_being_loaded(BlockId block) const {
  const auto loads = [block](const auto& sequence) {
    return (sequence->receiving || sequence->unconfirmed) &&
           std::ranges::find(sequence->blocks, block) != sequence->blocks.end();
  };
  return std::ranges::any_of(loading_, loads) || std::ranges::any_of(running_, loads) ||
         std::ranges::any_of(retiring_, loads);
}

void Scheduler::take_connector_outputs(const std::vector<KvConnectorOutput>& outputs) {
  for (const KvConnectorOutput& output : outputs) {
    for (const BlockId block : output.invalid_block_ids)
      if (is_being_loaded(block))
        invalid_blocks_.insert(block);
    if (!output.failure.empty())
      load_failure_ = output.failure;
    for (const RequestId id : output.finished_recving)
      ++recving_reports_[id];
    for (const RequestId id : output.finished_sending)
      ++sending_reports_[id];
    connector_->update_connector_output(output);
  }
}

// Requests of this step that a synchronous load has failed, if the policy is to fail them.
std::vector<RequestOutput> Scheduler::fail_invalid_steps(const StepPlan& plan) {
  std::vector<RequestOutput> outputs;
  if (config_.kv_load_failure_policy != KvLoadFailurePolicy::kFail)
    return outputs;
  for (const ScheduledSequence& scheduled : plan.sequences) {
    const Sequence* sequence = find(scheduled.id);
    if (sequence == nullptr ||
        valid_until(*sequence, scheduled.first_position) == scheduled.first_position)
      continue;
    forget_invalid(*sequence);
    outputs.push_back(*finish_error(scheduled.id, load_failure()));
  }
  return outputs;
}

std::vector<RequestOutput> Scheduler::end_transfers() {
  std::vector<RequestOutput> outputs;
  const auto take_all = [this](std::map<RequestId, std::uint32_t>& reports) {
    RequestIds done;
    for (const auto& [id, ranks] : reports)
      if (ranks >= config_.world_size)
        done.push_back(id);
    for (const RequestId id : done)
      reports.erase(id);
    return done;
  };
  for (const RequestId id : take_all(recving_reports_)) {
    if (Sequence* sequence = find(id); sequence != nullptr && sequence->receiving)
      end_load(*sequence, outputs);
    else if (Sequence* retired = find_retiring(id))
      retired->receiving = false;
  }
  for (const RequestId id : take_all(sending_reports_))
    if (Sequence* retired = find_retiring(id))
      retired->sending = false;
  for (const auto& sequence : retiring_)
    if (!sequence->receiving)
      forget_invalid(*sequence);
  return outputs;
}

void Scheduler::end_load(Sequence& sequence, std::vector<RequestOutput>& outputs) {
  sequence.receiving = false;
  const std::uint32_t wanted = sequence.computed + sequence.external;
  const std::uint32_t valid = valid_until(sequence, wanted);
  forget_invalid(sequence);
  loading_.erase(&sequence);
  waiting_.insert(&sequence);
  if (valid < wanted && config_.kv_load_failure_policy == KvLoadFailurePolicy::kFail) {
    outputs.push_back(*finish_error(sequence.id, load_failure()));
    return;
  }
  // The last token's logits exist only if that token is computed.
  const std::uint32_t until = std::min(std::max(valid, sequence.computed), sequence.length() - 1);
  counters_.recomputed_tokens += wanted - std::max(valid, sequence.computed);
  count_loaded(sequence, until - std::min(until, sequence.computed));
  sequence.computed = until;
  sequence.external = 0;
  publish_computed(sequence);
}

TransfersUnderWay Scheduler::transfers() const {
  TransfersUnderWay now{.loads = loading_.size()};
  if (pause_state_ == PauseState::kUnpaused)
    now.lookups = static_cast<std::size_t>(std::ranges::count_if(waiting_, &Sequence::looked_up));
  for (const auto& sequence : retiring_) {
    now.loads += sequence->receiving;
    now.sends += sequence->sending;
  }
  return now;
}

void Scheduler::drop_transfers() {
  DM_CHECK(running_.empty(), "who ran was preempted");
  for (Sequence* sequence : waiting_) {  // a load of theirs has just ended
    if (!sequence->blocks.empty())
      count_lost(*sequence, sequence->loaded);
    release_blocks(*sequence);
  }
  for (Sequence* sequence : Queue(std::exchange(loading_, {}))) {
    counters_.recomputed_tokens += sequence->external;
    sequence->receiving = false;
    release_blocks(*sequence);
    waiting_.insert(sequence);
  }
  for (auto& sequence : retiring_)
    sequence->receiving = sequence->sending = false;
  release_unused();
  invalid_blocks_.clear();
  load_failure_.clear();
  recving_reports_.clear();
  sending_reports_.clear();
}

Sequence* Scheduler::find_retiring(RequestId id) {
  const auto found = std::ranges::find(retiring_, id, &Sequence::id);
  return found == retiring_.end() ? nullptr : found->get();
}

}  // namespace dormouse

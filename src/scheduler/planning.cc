// Scheduler's half that decides: what runs next, on which blocks. The life of a request is in
// scheduler.cc.
#include <algorithm>
#include <ranges>
#include <span>
#include <utility>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace dormouse {

StepPlan Scheduler::plan() {
  DM_CHECK(!step_in_flight_, "one step is in flight at a time");
  StepPlan plan;
  plan.step = next_step_;
  if (pause_state_ != PauseState::kPausedAll) {
    schedule_decodes(plan);
    schedule_prefills(plan);
    admit_waiting(plan);
  }
  attach_connector(plan);
  if (plan.sequences.empty() && !plan.polls_connector)
    return plan;
  step_in_flight_ = true;
  ++next_step_;
  return plan;
}

// Victims come from the end of `running_`, so the iterator of a sequence that survived stays valid.
void Scheduler::schedule_decodes(StepPlan& plan) {
  for (auto next = running_.begin(); next != running_.end() && budget_left(plan) > 0; ++next) {
    Sequence& sequence = **next;
    if (sequence.remaining() > 1)
      continue;
    if (!make_room_for_next_token(sequence))
      break;
    schedule(plan, sequence);
  }
}

void Scheduler::schedule_prefills(StepPlan& plan) {
  for (Sequence* sequence : running_)
    if (sequence->remaining() > 1 && budget_left(plan) > 0)
      schedule(plan, *sequence);
}

void Scheduler::admit_waiting(StepPlan& plan) {
  bool room = true;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    if (running_.size() >= config_.max_num_seqs || budget_left(plan) == 0)
      return;
    Sequence& sequence = **next;
    const bool may_start = sequence.started || pause_state_ == PauseState::kUnpaused;
    // Behind one that lacks room only those go that hold their blocks already.
    const bool considered = may_start && (room || !sequence.blocks.empty());
    const Admission admission = considered ? admit(sequence) : Admission::kLater;
    room = room && admission != Admission::kNoRoom;
    if (admission == Admission::kNoRoom || admission == Admission::kLater) {
      ++next;
      continue;
    }
    next = waiting_.erase(next);
    if (admission == Admission::kLoading) {
      loading_.insert(&sequence);
      continue;
    }
    running_.insert(&sequence);
    schedule(plan, sequence);
  }
}

// All or nothing: blocks for every token so far, so that a prompt under way never lacks one.
Scheduler::Admission Scheduler::admit(Sequence& sequence) {
  if (!sequence.blocks.empty())
    return Admission::kReady;  // a load has ended
  std::vector<BlockId> prefix = find_cached_prefix(sequence);
  const auto num_cached = static_cast<std::uint32_t>(prefix.size());
  const auto num_free =
      std::ranges::count_if(prefix, [this](BlockId block) { return pool_.holders(block) == 0; });
  const std::uint32_t needed = blocks_for(sequence.length());
  if (needed - num_cached + static_cast<std::uint32_t>(num_free) > pool_.free())
    return Admission::kNoRoom;
  std::optional<KvMatch> match = KvMatch{};
  if (connector_ != nullptr && !sequence.asked_connector)
    match = connector_->get_num_new_matched_tokens(kv_request(sequence),
                                                   num_cached * config_.block_size);
  sequence.looked_up = !match;
  if (!match)
    return Admission::kLater;

  for (const BlockId block : prefix)
    pool_.acquire_cached(block);
  sequence.blocks = std::move(prefix);
  while (sequence.blocks.size() < needed)
    sequence.blocks.push_back(*pool_.allocate());
  sequence.published = num_cached;
  sequence.computed = num_cached * config_.block_size;
  if (!sequence.started) {
    sequence.started = true;
    sequence.cached_tokens = sequence.computed;
    if (config_.enable_prefix_caching) {
      counters_.prefix_cache_queries += sequence.prompt_length;
      counters_.prefix_cache_hits += sequence.cached_tokens;
    }
  }
  return start_load(sequence, *match);
}

bool Scheduler::make_room_for_next_token(Sequence& sequence) {
  while (sequence.blocks.size() < blocks_for(sequence.length())) {
    if (const auto block = pool_.allocate()) {
      sequence.blocks.push_back(*block);
      continue;
    }
    Sequence& victim = **running_.rbegin();
    preempt(victim);
    if (&victim == &sequence)
      return false;
  }
  return true;
}

void Scheduler::schedule(StepPlan& plan, Sequence& sequence) {
  const std::uint32_t count = std::min(sequence.remaining(), budget_left(plan));
  plan.sequences.push_back(schedule_next(sequence, count, config_.block_size));
  plan.total_tokens += count;
  sequence.in_flight = true;
}

std::uint32_t Scheduler::budget_left(const StepPlan& plan) const {
  return config_.max_num_batched_tokens - plan.total_tokens;
}

// Never the whole of it: the last token's logits exist only if that token is computed.
std::vector<BlockId> Scheduler::find_cached_prefix(Sequence& sequence) {
  std::vector<BlockId> prefix;
  if (!config_.enable_prefix_caching)
    return prefix;
  extend_hashes(sequence);
  const std::size_t block_size = config_.block_size;
  const std::size_t limit = (sequence.tokens.size() - 1) / block_size;
  const std::span<const TokenId> tokens = sequence.tokens;
  while (prefix.size() < limit) {
    const std::size_t i = prefix.size();
    const auto block =
        pool_.find_cached(sequence.hashes[i + 1], tokens.subspan(i * block_size, block_size));
    if (!block)
      break;
    prefix.push_back(*block);
  }
  return prefix;
}

void Scheduler::extend_hashes(Sequence& sequence) {
  const std::size_t block_size = config_.block_size;
  const std::span<const TokenId> tokens = sequence.tokens;
  for (std::size_t i = sequence.hashes.size() - 1; (i + 1) * block_size <= tokens.size(); ++i)
    sequence.hashes.push_back(
        hasher_.child(sequence.hashes[i], tokens.subspan(i * block_size, block_size)));
}

void Scheduler::publish_computed(Sequence& sequence) {
  if (!config_.enable_prefix_caching)
    return;
  extend_hashes(sequence);
  const std::size_t block_size = config_.block_size;
  const std::span<const TokenId> tokens = sequence.tokens;
  for (; sequence.published < sequence.computed / block_size; ++sequence.published) {
    const std::size_t i = sequence.published;
    pool_.publish(sequence.blocks[i], sequence.hashes[i + 1],
                  tokens.subspan(i * block_size, block_size));
  }
}

void Scheduler::preempt(Sequence& sequence) {
  running_.erase(&sequence);
  waiting_.insert(&sequence);
  release_blocks(sequence);
  ++sequence.preemptions;
  ++counters_.preemptions;
}

void Scheduler::release_blocks(Sequence& sequence) {
  for (const BlockId block : std::views::reverse(sequence.blocks))
    pool_.release(block);
  sequence.blocks.clear();
  sequence.published = 0;
  sequence.computed = 0;
  sequence.external = 0;
}

std::uint32_t Scheduler::blocks_for(std::uint32_t num_tokens) const {
  return (num_tokens + config_.block_size - 1) / config_.block_size;
}

}  // namespace dormouse

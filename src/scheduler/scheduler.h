// Decides what the ranks compute next: continuous batching with chunked prefill.
//
// One step takes first a token of every sequence that generates, then prompts under way, then new
// requests, within the budgets. A request is admitted when blocks for all of its tokens are free;
// only generation needs more, and when none is free the sequence served last (highest `priority`
// value, then newest) is preempted: it gives its blocks back and is computed again later, with the
// same result. What is planned depends on the scheduler's and the pool's state alone: no clock, no
// device, no chance.
//
// With a KV connector a request may first wait for blocks that are loaded, and its blocks may be
// held after its end until they are sent. What a load did not bring is computed, or the request
// ends with kTransferFailed, as the policy says.
//
// Owns:    the sequences; holds blocks of the pool, which must outlive it, as must the connector.
// Threads: one, the engine's.
// Order:   plan, then complete or fail_step with that same plan, then plan again. An empty plan is
//          not completed. Everything but plan and preempt_all may be called while a step is in
//          flight: a sequence that ends then is reported at once, but its blocks are released by
//          complete or fail_step, since the step may still write to them.
// Errors:  `add` refuses; afterwards every request gets exactly one output with `finished`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "dormouse/kv_connector.h"
#include "dormouse/request.h"
#include "dormouse/result.h"
#include "kv_cache/block_pool.h"
#include "protocol/step.h"
#include "scheduler/sequence.h"

namespace dormouse {

struct SchedulerConfig {
  std::uint32_t max_num_seqs = 16;             // sequences that hold blocks
  std::uint32_t max_num_batched_tokens = 512;  // in one step
  std::uint32_t block_size = 16;               // tokens
  std::uint32_t max_model_len = 2048;          // prompt and output together, tokens
  bool enable_prefix_caching = true;
  std::vector<TokenId> end_of_generation;  // the model's stop tokens; ignore_eos disregards them
  KvLoadFailurePolicy kv_load_failure_policy = KvLoadFailurePolicy::kRecompute;
  std::uint32_t world_size = 1;  // ranks that report what the connector finished
};

enum class PauseState {
  kUnpaused,
  kPausedNew,  // what has started runs on, preempted or not; what has not stays queued
  kPausedAll,  // nothing runs; everything stays queued
};

// Since construction. Tokens unless said.
struct SchedulerCounters {
  std::uint64_t prompt_tokens = 0;  // of requests that generated their first token
  std::uint64_t generation_tokens = 0;
  std::uint64_t prefix_cache_queries = 0;      // of prompts, at a request's first admission
  std::uint64_t prefix_cache_hits = 0;         // of those, found
  std::uint64_t preemptions = 0;               // sequences
  std::array<std::uint64_t, 4> finished = {};  // requests, by FinishReason
  std::uint64_t external_queries = 0;          // looked up in the connector, beyond the cached
  std::uint64_t external_hits = 0;             // of those, found
  std::uint64_t transferred_tokens = 0;        // of prompts, loaded through the connector
  std::uint64_t recomputed_tokens = 0;         // of prompts, computed because a load failed
};

// What the connector does with blocks now.
struct TransfersUnderWay {
  std::size_t loads = 0;    // requests that wait for blocks, or ended while they were loaded
  std::size_t sends = 0;    // requests that ended and whose blocks are held
  std::size_t lookups = 0;  // requests of which the connector does not know yet what it has
};

class Scheduler {
 public:
  // `connector` may be null.
  Scheduler(SchedulerConfig config, BlockPool& pool, SchedulerConnector* connector = nullptr);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Queues a request with validated sampling parameters.
  // kInvalidArgument: empty prompt, no room for output in the context, max_tokens of 0.
  // kResourceExhausted: its longest possible end needs more blocks than the pool has.
  Status add(RequestId id, Request request);
  // What add would refuse. Looks at the configuration only: from any thread.
  Status check_fits(const Request& request) const;

  // The next step, empty when nothing can run. With `polls_connector` it is run all the same.
  StepPlan plan();
  // A step that computes nothing, for the connector's sake.
  StepPlan plan_poll();

  // Takes the sampled tokens in. One output for each sequence that sampled; its `tokens` includes
  // the token that stopped it, which `stop_token` then names too.
  std::vector<RequestOutput> complete(const StepPlan& plan, const StepResult& result);

  // The step failed: what it computed is lost, and every sequence in it ends with the error.
  std::vector<RequestOutput> fail_step(const StepPlan& plan, const Error& error);

  // End a request. Nothing: unknown, or it ended before.
  std::optional<RequestOutput> abort(RequestId id);
  std::optional<RequestOutput> finish_error(RequestId id, Error error);
  std::vector<RequestOutput> abort_all();

  // All running sequences give their blocks back and wait, ahead of newer ones. Generated tokens
  // are kept and not reported again, and the random stream goes on where it was. No step may be in
  // flight then.
  void preempt_all();

  void set_admission(PauseState state) { pause_state_ = state; }

  TransfersUnderWay transfers() const;
  // The connector has something to tell the ranks.
  bool connector_waits() const { return connector_ != nullptr && connector_->has_pending_work(); }
  // For memory that was unmapped, after preempt_all: every block is given back, and requests that
  // waited for a load, or had what it brought, are computed. What the ranks report of transfers
  // later is ignored.
  void drop_transfers();

  // Work that the pause state lets run: all, what has started, or nothing. A step in flight counts.
  bool has_unfinished() const;
  bool step_in_flight() const { return step_in_flight_; }
  std::size_t num_unfinished() const { return sequences_.size(); }
  std::size_t num_running() const { return running_.size(); }
  std::size_t num_waiting() const { return waiting_.size(); }  // preempted ones included
  std::uint32_t blocks_used() const { return pool_.used(); }
  const SchedulerCounters& counters() const { return counters_; }

 private:
  using Queue = std::set<Sequence*, ServedBefore>;

  void schedule_decodes(StepPlan& plan);
  void schedule_prefills(StepPlan& plan);
  void admit_waiting(StepPlan& plan);
  enum class Admission { kReady, kLoading, kNoRoom, kLater };
  Admission admit(Sequence& sequence);
  Admission start_load(Sequence& sequence, const KvMatch& match);
  bool make_room_for_next_token(Sequence& sequence);
  void schedule(StepPlan& plan, Sequence& sequence);
  std::uint32_t budget_left(const StepPlan& plan) const;

  std::vector<BlockId> find_cached_prefix(Sequence& sequence);
  void extend_hashes(Sequence& sequence);
  void publish_computed(Sequence& sequence);
  void preempt(Sequence& sequence);
  void release_blocks(Sequence& sequence);

  Sequence* find(RequestId id);
  RequestOutput take_token(Sequence& sequence, const GeneratedToken& token);
  RequestOutput output_of(const Sequence& sequence) const;
  void finish(Sequence& sequence, FinishReason reason, RequestOutput& output);
  void end_step(const StepPlan& plan);
  void retire(std::unique_ptr<Sequence> sequence);
  void release_unused();

  // transfers.cc
  void attach_connector(StepPlan& plan);
  void take_connector_outputs(const std::vector<KvConnectorOutput>& outputs);
  std::vector<RequestOutput> end_transfers();
  std::vector<RequestOutput> fail_invalid_steps(const StepPlan& plan);
  void end_load(Sequence& sequence, std::vector<RequestOutput>& outputs);
  void count_loaded(Sequence& sequence, std::uint32_t tokens);
  void count_lost(Sequence& sequence, std::uint32_t tokens);
  std::uint32_t valid_until(const Sequence& sequence, std::uint32_t end) const;
  void forget_invalid(const Sequence& sequence);
  bool is_being_loaded(BlockId block) const;
  Error load_failure() const;
  Sequence* find_retiring(RequestId id);
  std::uint32_t blocks_for(std::uint32_t num_tokens) const;

  const SchedulerConfig config_;
  BlockPool& pool_;
  const BlockHasher hasher_;
  PauseState pause_state_ = PauseState::kUnpaused;

  std::unordered_map<RequestId, std::unique_ptr<Sequence>> sequences_;  // not yet finished
  Queue waiting_;
  Queue running_;
  Queue loading_;  // hold their blocks and wait for the connector
  // Finished, but the step in flight or the connector refers to their blocks.
  std::vector<std::unique_ptr<Sequence>> retiring_;

  SchedulerConnector* const connector_;
  RequestIds ended_;                                    // since the last plan
  std::unordered_set<BlockId> invalid_blocks_;          // of loads that failed and have not ended
  std::string load_failure_;                            // why the last one failed
  std::map<RequestId, std::uint32_t> recving_reports_;  // how many ranks finished
  std::map<RequestId, std::uint32_t> sending_reports_;

  bool step_in_flight_ = false;
  std::uint64_t next_step_ = 1;
  std::uint64_t next_arrival_ = 0;
  SchedulerCounters counters_;
};

}  // namespace dormouse

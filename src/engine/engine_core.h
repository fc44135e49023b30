// The engine: one thread that takes requests in, runs steps, and changes the memory between them.
//
// Control calls wait in a queue and are carried out by that thread, one at a time and in order. A
// sleep or a pause first drains, while steps go on; everything else is done at once. See
// docs/lifecycle.md.
//
// Threads: public methods from any. What follows "engine thread" below belongs to that thread
//          alone, but that `submit` asks the scheduler what fits. What follows "guarded" is written
//          under mutex_ and read under it; the engine thread reads without it what it alone writes.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_map>

#include "dormouse/engine.h"
#include "dormouse/metrics.h"
#include "engine/control.h"
#include "engine/lifecycle.h"
#include "engine/model_text.h"
#include "executor/executor.h"
#include "kv_cache/block_pool.h"
#include "scheduler/scheduler.h"

namespace dormouse {

using ExecutorFactory = std::function<std::unique_ptr<Executor>(const EngineConfig&)>;

class EngineCore final : public Engine {
 public:
  EngineCore(EngineConfig config, const ExecutorFactory& make_executor);
  ~EngineCore() override;

  Status wait_until_loaded() override;
  Result<RequestId> submit(Request request, OutputSink sink) override;
  void abort(RequestId id) override;
  std::size_t abort_all() override;
  Result<TransitionReport> sleep(SleepOptions options) override;
  Result<TransitionReport> wake_up(std::optional<std::vector<std::string>> tags) override;
  Result<TransitionReport> pause(PauseMode mode, bool clear_cache) override;
  Result<TransitionReport> resume() override;
  Result<TransitionReport> release_kv_cache_memory() override;
  Result<TransitionReport> reload_weights() override;
  Result<bool> reset_prefix_cache(bool reset_running_requests, bool reset_external) override;
  void shutdown(std::chrono::milliseconds deadline) override;
  EngineStatus status() const override;
  EngineCounters counters() const override;
  std::shared_ptr<const text::Tokenizer> tokenizer() const override;
  std::shared_ptr<const text::ChatTemplate> chat_template() const override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Arrival {
    RequestId id;
    Request request;
    OutputSink sink;
    Clock::time_point arrived;
  };
  // Whoever waits for a request's outputs, and when what happened to it.
  struct Caller {
    OutputSink sink;
    Clock::time_point arrived;
    std::optional<Clock::time_point> computed = std::nullopt;  // first
    std::optional<Clock::time_point> answered = std::nullopt;  // with its first token
    RequestTimes times_until(Clock::time_point now) const;
  };

  Result<TransitionReport> carry_out(ControlAction action);
  Status check_may_unmap() const;
  Status check_transfer(Request& request);

  // engine thread
  void run();
  Status load();
  void take_inbox();
  bool may_step() const;
  void step();
  void note_step(const StepPlan& plan);
  void deliver(std::vector<RequestOutput> outputs);
  void wait_for_work();
  std::optional<Clock::time_point> next_turn() const;  // under the lock
  void publish();
  bool finished_shutting_down();

  // engine thread: the KV connector's scheduler half (connector.cc)
  Status start_connector();
  void poll_connector();
  void take_connector_outputs(const StepResult& result);
  void publish_handshake(const RankState& ranks);
  void withdraw_handshake();

  // engine thread: control calls (transitions.cc)
  void advance_controls();
  void begin_control();
  std::optional<Result<TransitionReport>> begin(const SleepAction& sleep);
  std::optional<Result<TransitionReport>> begin(const PauseAction& pause);
  Result<TransitionReport> begin(const WakeUpAction& wake_up);
  Result<TransitionReport> begin(const ResumeAction& resume);
  Result<TransitionReport> begin(const ReleaseKvCacheAction& release);
  Result<TransitionReport> begin(const ReloadWeightsAction& reload);
  Result<TransitionReport> begin(const ResetPrefixCacheAction& reset);
  void start_draining(PauseMode mode, bool closes_gate);
  void advance_drain();
  Result<TransitionReport> after_drain();
  Result<TransitionReport> give_back(const RankCall& call, int level);
  Result<TransitionReport> undo_drain(Error error);
  void answer(Result<TransitionReport> result);
  std::optional<Clock::time_point> drain_deadline() const;  // under the lock

  Result<MemoryReceipt> on_every_rank(const RankCall& call);
  RankState ask_ranks();
  bool waits_for_leases() const;
  Error held_up() const;
  std::chrono::milliseconds release_timeout() const;
  EngineState current_state() const;
  void settle(const RankState& ranks);
  TransitionReport report(bool changed, MemoryReceipt receipt = {}) const;
  template <class Change>
  void change_state(Change&& change) {
    const std::lock_guard lock(mutex_);
    change(lifecycle_);
    status_.state = lifecycle_.state();
  }

  const EngineConfig config_;
  std::unique_ptr<Executor> executor_;

  // engine thread
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<SchedulerConnector> connector_;  // null without one
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::string> handshakes_;  // by rank, as they were asked last
  std::string model_hash_;
  KvConnectorStats worker_stats_;
  std::vector<TokenId> end_tokens_;
  std::unordered_map<RequestId, Caller> callers_;
  bool draining_ = false;

  mutable std::mutex mutex_;
  std::condition_variable wake_;    // the engine thread waits here
  std::condition_variable loaded_;  // others wait here
  // guarded
  Lifecycle lifecycle_;
  EngineStatus status_;
  EngineCounters counters_;
  ModelText text_;
  ModelFacts facts_;
  std::deque<Arrival> arrivals_;
  std::vector<RequestId> aborts_;
  bool abort_everything_ = false;
  std::deque<std::shared_ptr<Control>> controls_;
  std::shared_ptr<Control> active_;  // written by the engine thread, under the lock
  std::optional<Clock::time_point> shutdown_deadline_;
  RequestId last_id_ = 0;
  bool warned_no_connector_ = false;
  std::mt19937_64 seeds_{std::random_device{}()};
  std::atomic<bool> cancel_load_ = false;

  std::once_flag joined_;
  std::thread thread_;
};

}  // namespace dormouse

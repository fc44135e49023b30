// The calls that come from other threads.
#include <fmt/core.h>

#include "base/check.h"
#include "base/log.h"
#include "engine/engine_core.h"
#include "kv_connector/registry.h"

namespace dormouse {

Status EngineCore::wait_until_loaded() {
  std::unique_lock lock(mutex_);
  loaded_.wait(
      lock, [&] { return lifecycle_.is_loaded() || lifecycle_.state() == EngineState::kFailed; });
  if (lifecycle_.is_loaded())
    return {};
  return fail(ErrorCode::kInternal, lifecycle_.cause());
}

Result<RequestId> EngineCore::submit(Request request, OutputSink sink) {
  DM_TRY(validate(request.sampling));
  const Status transfer = check_transfer(request);
  const std::lock_guard lock(mutex_);
  const auto refused = [&](Error error) -> Result<RequestId> {
    ++counters_.requests_refused;
    return tl::unexpected(std::move(error));
  };
  if (const Status admitted = lifecycle_.admits(Lifecycle::Work::kRequest); !admitted)
    return refused(admitted.error());
  for (const TokenId token : request.prompt)
    if (!text_.tokenizer->contains(token))
      return refused({ErrorCode::kInvalidArgument,
                      fmt::format("Token id {} is not in the vocabulary of {} tokens.", token,
                                  facts_.vocab_size),
                      "prompt"});
  if (const Status fits = scheduler_->check_fits(request); !fits)
    return refused(fits.error());
  if (!transfer)
    return refused(transfer.error());
  if (!request.sampling.seeded)
    request.sampling.seed = seeds_();
  ++counters_.requests_accepted;
  arrivals_.push_back({++last_id_, std::move(request), std::move(sink), Clock::now()});
  wake_.notify_one();
  return last_id_;
}

// Reads what may be long, so not under the lock. The connector is there once the engine has loaded.
Status EngineCore::check_transfer(Request& request) {
  if (request.kv_transfer_params.empty())
    return {};
  const SchedulerConnector* connector = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!lifecycle_.is_loaded())
      return {};
    connector = connector_.get();
  }
  if (connector != nullptr)
    return connector->check_request(request);
  request.kv_transfer_params.clear();
  const std::lock_guard lock(mutex_);
  if (!std::exchange(warned_no_connector_, true))
    log(LogLevel::kWarning, "engine",
        "Got kv_transfer_params, but no KVConnector found. Disabling KVTransfer for this request.");
  return {};
}

void EngineCore::abort(RequestId id) {
  const std::lock_guard lock(mutex_);
  aborts_.push_back(id);
  wake_.notify_one();
}

std::size_t EngineCore::abort_all() {
  const std::lock_guard lock(mutex_);
  abort_everything_ = true;
  wake_.notify_one();
  return status_.requests_running + status_.requests_waiting + arrivals_.size();
}

Result<TransitionReport> EngineCore::carry_out(ControlAction action) {
  const bool overtakes = std::holds_alternative<WakeUpAction>(action);
  const auto control = std::make_shared<Control>(std::move(action));
  auto answer = control->answer.get_future();
  {
    const std::lock_guard lock(mutex_);
    if (lifecycle_.state() == EngineState::kFailed)
      return fail(ErrorCode::kFailedPrecondition, "The engine has failed: " + lifecycle_.cause());
    if (!lifecycle_.is_loaded())
      return fail(
          ErrorCode::kFailedPrecondition,
          fmt::format("The model is still loading ({:.0f} %).", 100 * status_.load_progress));
    if (shutdown_deadline_)
      return fail(ErrorCode::kFailedPrecondition, "The engine is shutting down.");
    if (overtakes) {
      if (active_ && active_->is_sleep())
        active_->cancelled = true;
      for (const auto& waiting : controls_)
        if (waiting->is_sleep())
          waiting->cancelled = true;
    }
    controls_.push_back(control);
    wake_.notify_one();
  }
  return answer.get();
}

Status EngineCore::check_may_unmap() const {
  DM_TRY(check_sleep_supported(config_.kv_transfer));
  if (!config_.enable_sleep_mode)
    return fail(ErrorCode::kUnsupported,
                "Sleep mode is off. Start the server with --enable-sleep-mode.");
  return {};
}

Result<TransitionReport> EngineCore::sleep(SleepOptions options) {
  if (options.level < 0 || options.level > 2)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("unknown level {}; use 0, 1 or 2", options.level), "level");
  if (options.level == 0)
    return carry_out(PauseAction{options.mode, false});
  DM_TRY(check_may_unmap());
  return carry_out(SleepAction{options});
}

Result<TransitionReport> EngineCore::wake_up(std::optional<std::vector<std::string>> tags) {
  return carry_out(WakeUpAction{std::move(tags)});
}

Result<TransitionReport> EngineCore::pause(PauseMode mode, bool clear_cache) {
  return carry_out(PauseAction{mode, clear_cache});
}

Result<TransitionReport> EngineCore::resume() {
  return carry_out(ResumeAction{});
}

Result<TransitionReport> EngineCore::release_kv_cache_memory() {
  DM_TRY(check_may_unmap());
  return carry_out(ReleaseKvCacheAction{});
}

Result<TransitionReport> EngineCore::reload_weights() {
  return carry_out(ReloadWeightsAction{});
}

Result<bool> EngineCore::reset_prefix_cache(bool reset_running_requests, bool reset_external) {
  DM_TRY_ASSIGN(const TransitionReport report,
                carry_out(ResetPrefixCacheAction{reset_running_requests, reset_external}));
  return report.changed;
}

void EngineCore::shutdown(std::chrono::milliseconds deadline) {
  {
    const std::lock_guard lock(mutex_);
    const auto wanted = Clock::now() + deadline;
    shutdown_deadline_ = shutdown_deadline_ ? std::min(*shutdown_deadline_, wanted) : wanted;
    lifecycle_.begin_shutdown();
    cancel_load_ = true;
    if (active_)
      active_->cancelled = true;
    wake_.notify_one();
  }
  std::call_once(joined_, [this] { thread_.join(); });
}

EngineStatus EngineCore::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

EngineCounters EngineCore::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

std::shared_ptr<const text::Tokenizer> EngineCore::tokenizer() const {
  const std::lock_guard lock(mutex_);
  return text_.tokenizer;
}

std::shared_ptr<const text::ChatTemplate> EngineCore::chat_template() const {
  const std::lock_guard lock(mutex_);
  return text_.chat_template;
}

}  // namespace dormouse

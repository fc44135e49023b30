#include "server/fake_engine.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "testing/tiny_model.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace dormouse::server {
namespace {

constexpr std::uint64_t kWeightBytes = 100 << 20;
constexpr std::chrono::seconds kWait{30};
constexpr std::uint64_t kCacheBytes = 20 << 20;

std::string_view name_of(PauseMode mode) {
  return mode == PauseMode::kAbort ? "abort" : mode == PauseMode::kWait ? "wait" : "keep";
}

std::shared_ptr<const text::ChatTemplate> chat_ml() {
  auto chat = text::ChatTemplate::create(std::nullopt, "<|im_start|>", "<|im_end|>");
  DM_CHECK(chat.has_value(), "the built-in template is valid");
  return *chat;
}

void put_asleep(EngineStatus& status, const std::string& tag) {
  if (std::find(status.tags_asleep.begin(), status.tags_asleep.end(), tag) !=
      status.tags_asleep.end())
    return;
  status.tags_asleep.push_back(tag);
  std::swap(status.memory[tag].mapped, status.memory[tag].asleep);
}

void settle(EngineStatus& status) {
  status.is_sleeping = status.is_paused || !status.tags_asleep.empty();
  status.accepts_requests = !status.is_sleeping && status.weights_valid;
  status.state = !status.tags_asleep.empty()                 ? EngineState::kAsleep
                 : status.is_paused || !status.weights_valid ? EngineState::kPaused
                                                             : EngineState::kRunning;
}

}  // namespace

FakeEngine::FakeEngine() : tokenizer_(byte_tokenizer()), chat_(chat_ml()) {
  status_.state = EngineState::kRunning;
  status_.weights_valid = true;
  status_.accepts_requests = true;
  status_.load_progress = 1;
  status_.blocks_total = 64;
  status_.max_model_len = 1024;
  status_.block_size = 16;
  status_.memory["weights"] = {.mapped = kWeightBytes, .generation = 1, .read_only = true};
  status_.memory["kv_cache"] = {.mapped = kCacheBytes, .generation = 1};
  status_.model_path = "/models/tiny.gguf";
  status_.served_model_name = "tiny";
  status_.kernel = "scalar";
  set_reply("Hello");
}

FakeEngine::~FakeEngine() {
  abort_all();
}

void FakeEngine::set_reply(std::function<std::vector<GeneratedToken>(const Request&)> reply) {
  const std::lock_guard lock(mutex_);
  reply_ = std::move(reply);
}

void FakeEngine::set_reply(std::string_view text) {
  std::vector<GeneratedToken> tokens;
  for (const TokenId token : tokenizer_->encode(text)) {
    const float next = -0.5F - static_cast<float>(tokens.size());
    tokens.push_back(
        {.token = token, .logprob = -0.5F, .top = {{token, -0.5F}, {byte_token('z'), next}}});
  }
  set_reply([tokens](const Request&) { return tokens; });
}

void FakeEngine::set_failure(Error error) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(error);
}

void FakeEngine::set_endless(bool endless) {
  const std::lock_guard lock(mutex_);
  endless_ = endless;
}

void FakeEngine::hold_requests(bool hold) {
  const std::lock_guard lock(mutex_);
  hold_requests_ = hold;
}

void FakeEngine::fail_next_control(Error error) {
  const std::lock_guard lock(mutex_);
  next_control_ = std::move(error);
}

void FakeEngine::fail_next_submit(Error error) {
  const std::lock_guard lock(mutex_);
  next_submit_ = std::move(error);
}

void FakeEngine::hold_transitions(bool hold) {
  const std::lock_guard lock(mutex_);
  hold_transitions_ = hold;
  changed_.notify_all();
}

void FakeEngine::change_status(const std::function<void(EngineStatus&)>& change) {
  const std::lock_guard lock(mutex_);
  change(status_);
}

std::vector<std::string> FakeEngine::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

std::vector<Request> FakeEngine::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

std::size_t FakeEngine::aborted() const {
  const std::lock_guard lock(mutex_);
  return aborted_;
}

template <class Condition>
void FakeEngine::wait_until(Condition condition) {
  std::unique_lock lock(mutex_);
  DM_CHECK(changed_.wait_for(lock, kWait, condition), "what the test waits for did not happen");
}

void FakeEngine::wait_for_held(std::size_t count) {
  wait_until([&] { return held_.size() >= count; });
}

void FakeEngine::wait_for_aborted(std::size_t count) {
  wait_until([&] { return aborted_ >= count; });
}

void FakeEngine::wait_for_call(const std::string& call) {
  wait_until([&] { return std::count(calls_.begin(), calls_.end(), call) > 0; });
}

void FakeEngine::set_on_submit(std::function<void()> hook) {
  const std::lock_guard lock(mutex_);
  on_submit_ = std::move(hook);
}

Result<RequestId> FakeEngine::submit(Request request, OutputSink sink) {
  std::unique_lock lock(mutex_);
  if (const auto hook = on_submit_) {
    lock.unlock();
    hook();
    lock.lock();
  }
  if (const auto error = std::exchange(next_submit_, std::nullopt))
    return tl::unexpected(*error);
  if (!status_.accepts_requests)
    return fail(ErrorCode::kUnavailable, "the engine is asleep; POST /wake_up");
  const RequestId id = next_id_++;
  requests_.push_back(request);
  const auto prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
  const bool hold = hold_requests_;
  held_[id] = {.sink = sink, .prompt_tokens = prompt_tokens};
  changed_.notify_all();
  if (!hold)
    thread_.submit([this, id, request = std::move(request), sink = std::move(sink)] {
      answer(id, request, sink);
    });
  return id;
}

void FakeEngine::answer(RequestId id, const Request& request, const OutputSink& sink) {
  std::function<std::vector<GeneratedToken>(const Request&)> reply;
  std::optional<Error> failure;
  {
    const std::lock_guard lock(mutex_);
    reply = reply_;
    failure = failure_;
  }
  const auto tokens = reply(request);
  const std::size_t most = failure ? 1 : request.sampling.max_tokens;
  const std::size_t count = std::min<std::size_t>(tokens.size(), most);
  for (std::size_t i = 0; i < count; ++i) {
    {
      const std::lock_guard lock(mutex_);
      if (!held_.contains(id))
        return;
    }
    RequestOutput output{.id = id, .tokens = {tokens[i]}};
    sink(std::move(output));
  }
  {
    const std::lock_guard lock(mutex_);
    if (endless_ || held_.erase(id) == 0)
      return;
  }
  RequestOutput last{.id = id};
  last.finished = count < tokens.size() ? FinishReason::kLength : FinishReason::kStop;
  if (failure) {
    last.finished = FinishReason::kError;
    last.error = *failure;
  }
  last.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
  last.cached_tokens = last.prompt_tokens / 2;
  last.times = {.queued = 0.25, .prefill = 0.5, .decode = 2};
  sink(std::move(last));
}

void FakeEngine::abort(RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(id);
  if (found == held_.end())
    return;
  thread_.submit([id, held = std::move(found->second)] {
    RequestOutput output{.id = id};
    output.finished = FinishReason::kAbort;
    output.prompt_tokens = held.prompt_tokens;
    held.sink(std::move(output));
  });
  held_.erase(found);
  ++aborted_;
  changed_.notify_all();
}

std::size_t FakeEngine::abort_all() {
  std::vector<RequestId> ids;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, held] : held_)
      ids.push_back(id);
  }
  for (const RequestId id : ids)
    abort(id);
  return ids.size();
}

Result<TransitionReport> FakeEngine::transition(std::string call,
                                                const std::function<void(EngineStatus&)>& change) {
  std::unique_lock lock(mutex_);
  calls_.push_back(std::move(call));
  changed_.notify_all();
  changed_.wait(lock, [this] { return !hold_transitions_; });
  if (const auto error = std::exchange(next_control_, std::nullopt))
    return tl::unexpected(*error);
  const auto mapped = [this] {
    std::int64_t sum = 0;
    for (const auto& [tag, usage] : status_.memory)
      sum += static_cast<std::int64_t>(usage.mapped);
    return sum;
  };
  const std::int64_t before = mapped();
  change(status_);
  settle(status_);
  TransitionReport report{.state = status_.state,
                          .level = status_.sleep_level,
                          .tags_asleep = status_.tags_asleep,
                          .changed = true,
                          .total_ms = 12.5};
  report.memory.measured_freed = before - mapped();
  report.memory.phases_ms = {{"unmap", 12.5}};
  status_.last_transition = report;
  return report;
}

Result<TransitionReport> FakeEngine::sleep(SleepOptions options) {
  std::string call = fmt::format("sleep level={} mode={}", options.level, name_of(options.mode));
  if (options.deadline)
    call += fmt::format(" deadline={}", options.deadline->count());
  if (options.force)
    call += " force";
  return transition(std::move(call), [&](EngineStatus& status) {
    status.sleep_level = options.level;
    status.is_paused = true;
    if (options.level > 0) {
      put_asleep(status, "kv_cache");
      put_asleep(status, "weights");
    }
  });
}

Result<TransitionReport> FakeEngine::wake_up(std::optional<std::vector<std::string>> tags) {
  std::string call = "wake_up";
  for (const auto& tag : tags.value_or(std::vector<std::string>{"all"}))
    call += " " + tag;
  return transition(std::move(call), [&](EngineStatus& status) {
    const std::vector<std::string> asleep = status.tags_asleep;
    for (const auto& tag : asleep) {
      if (tags && std::find(tags->begin(), tags->end(), tag) == tags->end())
        continue;
      std::erase(status.tags_asleep, tag);
      std::swap(status.memory[tag].mapped, status.memory[tag].asleep);
    }
    status.is_paused = !status.tags_asleep.empty();
  });
}

Result<TransitionReport> FakeEngine::pause(PauseMode mode, bool clear_cache) {
  return transition(fmt::format("pause mode={} clear_cache={}", name_of(mode), clear_cache),
                    [](EngineStatus& status) { status.is_paused = true; });
}

Result<TransitionReport> FakeEngine::resume() {
  const EngineStatus now = status();
  if (now.state == EngineState::kDegraded || !now.tags_asleep.empty())
    return fail(ErrorCode::kFailedPrecondition, "it cannot be resumed; POST /wake_up");
  if (!now.weights_valid)
    return fail(ErrorCode::kFailedPrecondition, "it cannot be resumed; POST /reload_weights");
  return transition("resume", [](EngineStatus& status) { status.is_paused = false; });
}

Result<TransitionReport> FakeEngine::release_kv_cache_memory() {
  return transition("release_kv_cache_memory",
                    [](EngineStatus& status) { put_asleep(status, "kv_cache"); });
}

Result<TransitionReport> FakeEngine::reload_weights() {
  return transition("reload_weights", [](EngineStatus& status) { status.weights_valid = true; });
}

Result<bool> FakeEngine::reset_prefix_cache(bool reset_running_requests, bool reset_external) {
  DM_TRY(transition(fmt::format("reset_prefix_cache running={} external={}", reset_running_requests,
                                reset_external),
                    [](EngineStatus&) {}));
  return true;
}

void FakeEngine::shutdown(std::chrono::milliseconds) {
  {
    const std::lock_guard lock(mutex_);
    status_.state = EngineState::kDraining;
    status_.accepts_requests = false;
  }
  abort_all();
}

EngineStatus FakeEngine::status() const {
  const std::lock_guard lock(mutex_);
  EngineStatus status = status_;
  status.requests_running = static_cast<std::uint32_t>(held_.size());
  return status;
}

EngineCounters FakeEngine::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void FakeEngine::set_counters(EngineCounters counters) {
  const std::lock_guard lock(mutex_);
  counters_ = std::move(counters);
}

std::shared_ptr<const text::Tokenizer> byte_tokenizer() {
  constexpr std::size_t kControlTokens = 3;
  constexpr std::size_t kTokens = kControlTokens + 256;
  text::TokenizerData data;
  data.model = "gpt2";
  data.pre = "gpt-2";
  data.tokens = testing::tiny_vocabulary();
  data.tokens.resize(kTokens);
  data.types.assign(kTokens, 1);
  std::fill_n(data.types.begin(), kControlTokens, 3);
  data.eos = kEndOfText;
  auto tokenizer = text::Tokenizer::create(std::move(data));
  DM_CHECK(tokenizer.has_value(), "the byte vocabulary is valid");
  return *tokenizer;
}

}  // namespace dormouse::server

// An engine without a model, for tests of what stands in front of one.
//
// Each request is answered with the tokens of `reply`, one event a token, then "stop"; or it hangs
// until it is aborted. Control calls succeed at once and are written down; one can be made to fail
// or to block.
//
// Threads: as every Engine. Outputs come on a thread of its own.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "dormouse/engine.h"
#include "dormouse/metrics.h"
#include "server/worker_pool.h"

namespace dormouse::server {

// <|endoftext|> 0, <|im_start|> 1, <|im_end|> 2 (the EOS), then one token for each byte.
inline constexpr TokenId kEndOfText = 2;
inline TokenId byte_token(char byte) {
  return 3 + static_cast<unsigned char>(byte);
}
std::shared_ptr<const text::Tokenizer> byte_tokenizer();

class FakeEngine final : public Engine {
 public:
  FakeEngine();
  ~FakeEngine() override;

  // What the next requests and calls meet.
  void set_reply(std::function<std::vector<GeneratedToken>(const Request&)> reply);
  void set_reply(std::string_view text);
  void set_failure(Error error);   // after one token, from now on
  void set_endless(bool endless);  // after the reply a request hangs until it is aborted
  void hold_requests(bool hold);   // hangs without any token

  void set_on_submit(std::function<void()> hook);  // runs within each submit
  void fail_next_control(Error error);
  void fail_next_submit(Error error);
  void hold_transitions(bool hold);
  void set_counters(EngineCounters counters);
  void change_status(const std::function<void(EngineStatus&)>& change);

  // What has happened.
  std::vector<std::string> calls() const;  // "sleep level=1 mode=abort" ...
  std::vector<Request> requests() const;
  std::size_t aborted() const;
  // Wait until so many requests are held, or were aborted, or a call came; stop the test if none
  // does.
  void wait_for_held(std::size_t count);
  void wait_for_aborted(std::size_t count);
  void wait_for_call(const std::string& call);

  Status wait_until_loaded() override { return {}; }
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
  std::shared_ptr<const text::Tokenizer> tokenizer() const override { return tokenizer_; }
  std::shared_ptr<const text::ChatTemplate> chat_template() const override { return chat_; }

 private:
  template <class Condition>
  void wait_until(Condition condition);
  struct Held {
    OutputSink sink;
    std::uint32_t prompt_tokens;
  };
  Result<TransitionReport> transition(std::string call,
                                      const std::function<void(EngineStatus&)>& change);
  void answer(RequestId id, const Request& request, const OutputSink& sink);

  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  const std::shared_ptr<const text::ChatTemplate> chat_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  EngineStatus status_;
  EngineCounters counters_;
  std::function<std::vector<GeneratedToken>(const Request&)> reply_;
  std::function<void()> on_submit_;
  std::optional<Error> failure_;
  bool endless_ = false;
  bool hold_requests_ = false;
  bool hold_transitions_ = false;
  std::optional<Error> next_control_;
  std::optional<Error> next_submit_;
  std::vector<std::string> calls_;
  std::vector<Request> requests_;
  std::map<RequestId, Held> held_;
  std::size_t aborted_ = 0;
  RequestId next_id_ = 1;
  WorkerPool thread_{1, 1 << 20};
};

}  // namespace dormouse::server

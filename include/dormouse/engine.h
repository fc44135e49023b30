// A language model that can be put to sleep and woken.
//
// Threads: every method may be called from any thread. Outputs arrive on the engine's own thread.
// Order:   control calls (sleep, wake_up, pause, ...) run one at a time in order of arrival and
//          return when they are finished; a wake-up or a shutdown overtakes a sleep that is still
//          preparing, which then fails with kCancelled.
// Owns:    the model's memory, its threads, and everything a request needs until its last event.
// Errors:  values; a failed control call says what state the engine is in now.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dormouse/config.h"
#include "dormouse/memory.h"
#include "dormouse/request.h"

namespace dormouse {

namespace text {
class Tokenizer;
class ChatTemplate;
}  // namespace text

enum class EngineState {
  kStarting,
  kLoading,
  kRunning,
  kPausing,
  kPaused,
  kSleeping,
  kAsleep,
  kWaking,
  kDraining,
  kDegraded,
  kFailed,
};
std::string_view to_string(EngineState state);

// What happens to requests under way when the engine pauses or sleeps.
enum class PauseMode {
  kAbort,  // they end now with finish reason "abort"
  kWait,   // they run to their end first
  kKeep,   // they stop where they are and continue after the wake-up
};
Result<PauseMode> parse_pause_mode(std::string_view name);

struct SleepOptions {
  int level = 1;  // 0: pause only; 1: weights to host memory, KV cache dropped; 2: both dropped
  PauseMode mode = PauseMode::kAbort;
  // How long mode `wait` waits for requests (none: 300 s) and for peers that are to read their
  // blocks (none: 30 s), and peers that map our memory may take to let go (5 s at most).
  std::optional<std::chrono::milliseconds> deadline = std::nullopt;
  bool force = false;  // go on without peers that do not let go; what they pin is in the report
};

// One transition of the whole engine, as it was measured.
struct TransitionReport {
  EngineState state = EngineState::kRunning;  // afterwards
  int level = 0;
  std::vector<std::string> tags_asleep;  // afterwards
  bool changed = false;                  // false: it was already so
  MemoryReceipt memory;                  // bytes by tag, milliseconds by phase
  double total_ms = 0;
};

struct EngineStatus {
  EngineState state = EngineState::kStarting;
  std::string cause;  // why it is degraded, failed or loading; empty otherwise
  int sleep_level = 0;
  std::vector<std::string> tags_asleep;
  bool weights_valid = false;
  bool is_sleeping = false;  // paused or any tag asleep, as vLLM defines it
  bool is_paused = false;
  bool accepts_requests = false;
  double load_progress = 0;        // 0..1 while loading
  std::string transition_phase;    // what moves bytes now: "backup", "copy"; empty: nothing does
  double transition_progress = 0;  // 0..1 of that
  std::uint32_t requests_running = 0;
  std::uint32_t requests_waiting = 0;
  std::uint32_t blocks_total = 0;
  std::uint32_t blocks_used = 0;  // held by requests; cached blocks that can be taken do not count
  std::uint32_t max_model_len = 0;
  std::uint32_t block_size = 0;
  std::uint64_t generation_weights = 0;  // mappings so far, of each tag
  std::uint64_t generation_kv_cache = 0;
  MemoryUsage memory;
  std::string model_path;
  std::string served_model_name;
  std::string kernel;  // which CPU kernels run: avx512vnni, avx2, scalar
  TransitionReport last_transition;
  std::string kv_connector;    // empty: none
  std::string engine_id;       // for peers
  std::uint32_t kv_loads = 0;  // requests whose blocks are being loaded
  std::uint32_t kv_sends = 0;  // requests that ended and whose blocks wait for a peer
};

struct EngineCounters;  // dormouse/metrics.h

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

class Engine {
 public:
  // Returns at once; loading goes on in the background. See wait_until_loaded and status().
  static std::unique_ptr<Engine> start(EngineConfig config);
  virtual ~Engine() = default;

  // Blocks until the engine is running or has failed.
  virtual Status wait_until_loaded() = 0;

  // Accepts a request or says why not: kInvalidArgument (bounds, context), kUnavailable (loading,
  // asleep, draining), kResourceExhausted (it can never fit). While paused without sleep it queues.
  virtual Result<RequestId> submit(Request request, OutputSink sink) = 0;
  // Ends a request with FinishReason::kAbort and frees its blocks within one step. An unknown id
  // is ignored.
  virtual void abort(RequestId id) = 0;
  virtual std::size_t abort_all() = 0;

  virtual Result<TransitionReport> sleep(SleepOptions options) = 0;
  // Wakes these tags, or everything. Tags already awake are skipped; an unknown tag is an error and
  // changes nothing. "scheduling" stands for the pause alone.
  virtual Result<TransitionReport> wake_up(std::optional<std::vector<std::string>> tags) = 0;
  virtual Result<TransitionReport> pause(PauseMode mode, bool clear_cache) = 0;
  virtual Result<TransitionReport> resume() = 0;
  // Drops the KV cache alone. Needs a completed pause, or no requests at all.
  virtual Result<TransitionReport> release_kv_cache_memory() = 0;
  // Reads the weights from the model file again: after level 2, the way back to validity.
  virtual Result<TransitionReport> reload_weights() = 0;
  // `reset_external`: what the KV connector has stored, too. False: blocks were in use, or the
  // connector could not.
  virtual Result<bool> reset_prefix_cache(bool reset_running_requests,
                                          bool reset_external = false) = 0;

  // Stops admission, lets running requests finish until the deadline, aborts the rest, and ends
  // the engine's threads.
  virtual void shutdown(std::chrono::milliseconds deadline) = 0;

  virtual EngineStatus status() const = 0;
  virtual EngineCounters counters() const = 0;

  // A prompt's tokens, with the BOS and EOS that the model asks for, and the text of tokens: valid
  // UTF-8, without control tokens. kUnavailable until the engine is loaded; kUnsupported for chat
  // if the model has no chat template, which `encode_chat` applies up to the assistant's turn.
  Result<std::vector<TokenId>> encode(std::string_view prompt) const;
  Result<std::vector<TokenId>> encode_chat(std::span<const ChatMessage> messages) const;
  Result<std::string> decode(std::span<const TokenId> tokens) const;

  // What these are made of; null until the engine is loaded.
  virtual std::shared_ptr<const text::Tokenizer> tokenizer() const = 0;
  virtual std::shared_ptr<const text::ChatTemplate> chat_template() const = 0;
};

}  // namespace dormouse

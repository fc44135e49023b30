// What the engine's tests share: a real engine over a tiny model, and a collector of a request's
// events.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <ctime>
#include <filesystem>
#include <future>
#include <random>

#include "dormouse/engine.h"
#include "dormouse/metrics.h"
#include "testing/host_memory.h"
#include "testing/tiny_model.h"
#include "text/tokenizer.h"

namespace dormouse {

using std::chrono::milliseconds;

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::optional<FinishReason> finished;
  Error error;
  std::uint32_t cached_tokens = 0;
  bool operator==(const Answer& other) const {
    return tokens == other.tokens && logprobs == other.logprobs && finished == other.finished;
  }
};

inline double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

// Collects one request's events; `wait` blocks until the last.
class Collector {
 public:
  OutputSink sink() {
    return [state = state_](RequestOutput output) {
      const std::lock_guard lock(state->mutex);
      EXPECT_FALSE(state->answer.finished) << "an event after the last";
      for (const GeneratedToken& token : output.tokens) {
        state->answer.tokens.push_back(token.token);
        state->answer.logprobs.push_back(token.logprob);
      }
      state->answer.finished = output.finished;
      state->answer.error = output.error;
      state->answer.cached_tokens = output.cached_tokens;
      state->changed.notify_all();
    };
  }
  Answer wait() {
    std::unique_lock lock(state_->mutex);
    EXPECT_TRUE(state_->changed.wait_for(lock, std::chrono::seconds(60),
                                         [&] { return state_->answer.finished.has_value(); }));
    return state_->answer;
  }
  void wait_for_tokens(std::size_t count) {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait_for(lock, std::chrono::seconds(60), [&] {
      return state_->answer.tokens.size() >= count || state_->answer.finished;
    });
  }
  bool finished() {
    const std::lock_guard lock(state_->mutex);
    return state_->answer.finished.has_value();
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    Answer answer;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class EngineTest : public ::testing::Test {
 protected:
  static std::string model_path() {
    const std::string path = ::testing::TempDir() + "engine_test.gguf";
    static const bool written = [&] {
      return testing::write_tiny_model(path, {.type = format::GgmlType::kQ4_1, .context = 2048})
          .has_value();
    }();
    EXPECT_TRUE(written);
    return path;
  }
  static EngineConfig config() {
    EngineConfig config;
    config.model = model_path();
    config.max_num_seqs = 4;
    config.max_num_batched_tokens = 64;
    config.kv_cache_memory_bytes = 4 << 20;
    config.threads = 2;
    return config;
  }
  void start(const EngineConfig& config) {
    engine.reset();
    engine = Engine::start(config);
    ASSERT_TRUE(engine->wait_until_loaded());
  }
  void SetUp() override { start(config()); }

  static Request request(std::size_t length, std::uint32_t max_tokens = 12, int salt = 0) {
    Request wanted;
    for (std::size_t i = 0; i < length; ++i)
      wanted.prompt.push_back(
          static_cast<TokenId>(3 + (i * 37 + length + static_cast<std::size_t>(salt) * 11) % 250));
    wanted.sampling.temperature = 0;
    wanted.sampling.max_tokens = max_tokens;
    wanted.sampling.ignore_eos = true;
    wanted.sampling.logprobs = 0;
    return wanted;
  }
  Answer ask(std::size_t length, std::uint32_t max_tokens = 12) {
    Collector collector;
    const auto id = engine->submit(request(length, max_tokens), collector.sink());
    EXPECT_TRUE(id) << (id ? "" : id.error().message);
    return id ? collector.wait() : Answer{};
  }
  std::vector<Answer> ask_all() {
    std::vector<Answer> answers;
    for (const std::size_t length : {1, 7, 16, 33, 100, 300})
      answers.push_back(ask(length));
    return answers;
  }
  ErrorCode refusal() {
    const auto id = engine->submit(request(4), [](RequestOutput) {});
    EXPECT_FALSE(id);
    return id ? ErrorCode::kInternal : id.error().code;
  }

  std::unique_ptr<Engine> engine;
};

}  // namespace dormouse

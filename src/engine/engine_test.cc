// A real engine over a tiny model, from the outside.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <ctime>
#include <filesystem>
#include <future>
#include <random>

#include "dormouse/engine.h"
#include "engine/counters.h"
#include "testing/host_memory.h"
#include "testing/tiny_model.h"
#include "text/tokenizer.h"

namespace dormouse {
namespace {

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

double processor_seconds() {
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

TEST_F(EngineTest, AnswersTheSameAfterEveryKindOfSleep) {
  const auto first = ask_all();
  for (const Answer& answer : first) {
    EXPECT_EQ(answer.tokens.size(), 12U);
    EXPECT_EQ(answer.finished, FinishReason::kLength);
  }
  for (int cycle = 0; cycle < 2; ++cycle) {
    ASSERT_TRUE(engine->sleep({.level = 1}));
    ASSERT_TRUE(engine->wake_up(std::nullopt));
    EXPECT_EQ(ask_all(), first) << "level 1";

    ASSERT_TRUE(engine->sleep({.level = 2}));
    ASSERT_TRUE(engine->wake_up(std::nullopt));
    EXPECT_EQ(refusal(), ErrorCode::kUnavailable) << "weights are invalid";
    ASSERT_TRUE(engine->reload_weights());
    EXPECT_EQ(ask_all(), first) << "level 2";

    ASSERT_TRUE(engine->release_kv_cache_memory());
    EXPECT_EQ(refusal(), ErrorCode::kUnavailable);
    ASSERT_TRUE(engine->wake_up(std::vector<std::string>{"kv_cache"}));
    EXPECT_EQ(ask_all(), first) << "KV only";

    ASSERT_TRUE(engine->sleep({.level = 1}));
    ASSERT_TRUE(engine->wake_up(std::vector<std::string>{"weights"}));
    EXPECT_EQ(refusal(), ErrorCode::kUnavailable);
    EXPECT_EQ(engine->status().tags_asleep, std::vector<std::string>{"kv_cache"});
    ASSERT_TRUE(engine->wake_up(std::vector<std::string>{"kv_cache"}));
    EXPECT_EQ(ask_all(), first) << "partial";
  }
}

TEST_F(EngineTest, TellsWhereTheTimeOfARequestWent) {
  ASSERT_TRUE(engine->pause(PauseMode::kKeep, false));
  std::promise<RequestOutput> last;
  const auto sink = [&](RequestOutput output) {
    if (output.finished)
      last.set_value(std::move(output));
  };
  using Clock = std::chrono::steady_clock;
  const auto before = Clock::now();
  ASSERT_TRUE(engine->submit(request(100, 20), sink));
  const auto submitted = Clock::now();
  ASSERT_TRUE(engine->reset_prefix_cache(false));  // takes a little time
  const std::chrono::duration<double> held = Clock::now() - submitted;
  ASSERT_TRUE(engine->resume());
  const RequestTimes times = last.get_future().get().times;
  const std::chrono::duration<double> all = Clock::now() - before;
  EXPECT_GE(times.queued, held.count());
  EXPECT_GT(times.prefill, 0);
  EXPECT_GT(times.decode, 0);
  EXPECT_LE(times.queued + times.prefill + times.decode, all.count());
}

TEST_F(EngineTest, CountsStepsByTheirTokens) {
  const EngineCounters before = engine->counters();
  ask(100, 4);  // the prompt in steps of 64 and 36 tokens, then three of one
  const EngineCounters after = engine->counters();
  EXPECT_EQ(after.steps - before.steps, 5U);
  EXPECT_EQ(after.step_tokens - before.step_tokens, 103U);
  const auto up_to = [&](double bound) {
    const auto bucket = std::ranges::find(kStepTokenBounds, bound) - kStepTokenBounds.begin();
    const auto i = static_cast<std::size_t>(bucket);
    return after.steps_by_tokens[i] - before.steps_by_tokens[i];
  };
  EXPECT_EQ(up_to(1), 3U);
  EXPECT_EQ(up_to(64), 2U);
}

TEST_F(EngineTest, TheMemoryIsBackWhenTheAnswerToSleepComes) {
  const auto shared = *shared_memory_in_use();
  const auto report = engine->sleep({.level = 1});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->state, EngineState::kAsleep);
  EXPECT_EQ(block_references()->descriptors, 0U);
  EXPECT_EQ(block_references()->mappings, 0U);
  EXPECT_GT(report->memory.expected_freed, std::uint64_t{4} << 20);
  EXPECT_LT(*shared_memory_in_use(), shared);
  EXPECT_TRUE(engine->status().is_sleeping);
}

TEST_F(EngineTest, CachedPrefixesDoNotSurviveTheMemoryTheyWereIn) {
  ask(100);
  EXPECT_GT(ask(100).cached_tokens, 0U);
  ASSERT_TRUE(engine->release_kv_cache_memory());
  ASSERT_TRUE(engine->wake_up(std::nullopt));
  EXPECT_EQ(ask(100).cached_tokens, 0U);
}

TEST_F(EngineTest, ReloadingForgetsWhatTheOldWeightsComputed) {
  ask(100);
  ASSERT_TRUE(engine->reload_weights());
  EXPECT_EQ(ask(100).cached_tokens, 0U);
}

TEST_F(EngineTest, KeptRequestsGoOnAfterTheWakeUpWithTheSameTokens) {
  const Answer undisturbed = ask(40, 400);
  Collector collector;
  ASSERT_TRUE(engine->reset_prefix_cache(false));
  ASSERT_TRUE(engine->submit(request(40, 400), collector.sink()));
  collector.wait_for_tokens(5);
  ASSERT_TRUE(engine->sleep({.level = 1, .mode = PauseMode::kKeep}));
  EXPECT_FALSE(collector.finished());
  ASSERT_TRUE(engine->wake_up(std::nullopt));
  EXPECT_EQ(collector.wait(), undisturbed);
}

TEST_F(EngineTest, AbortedRequestsEndOnceWithReasonAbort) {
  Collector collector;
  ASSERT_TRUE(engine->submit(request(40, 1500), collector.sink()));
  collector.wait_for_tokens(2);
  ASSERT_TRUE(engine->sleep({.level = 1, .mode = PauseMode::kAbort}));
  EXPECT_EQ(collector.wait().finished, FinishReason::kAbort);
}

TEST_F(EngineTest, WaitLetsRunningRequestsFinishFirst) {
  Collector collector;
  ASSERT_TRUE(engine->submit(request(40, 200), collector.sink()));
  collector.wait_for_tokens(1);
  ASSERT_TRUE(engine->sleep({.level = 1, .mode = PauseMode::kWait}));
  EXPECT_TRUE(collector.finished());
  EXPECT_EQ(collector.wait().tokens.size(), 200U);
}

TEST_F(EngineTest, ASleepThatMissesItsDeadlineChangesNothing) {
  Collector collector;
  ASSERT_TRUE(engine->submit(request(40, 1900), collector.sink()));
  collector.wait_for_tokens(1);
  const auto report =
      engine->sleep({.level = 1, .mode = PauseMode::kWait, .deadline = milliseconds(1)});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(engine->status().state, EngineState::kRunning);
  engine->abort_all();
  collector.wait();
}

TEST_F(EngineTest, AWakeUpOvertakesASleepThatStillDrains) {
  Collector collector;
  ASSERT_TRUE(engine->submit(request(40, 1900), collector.sink()));
  collector.wait_for_tokens(1);
  std::optional<Result<TransitionReport>> slept;
  std::thread sleeper([&] { slept = engine->sleep({.level = 1, .mode = PauseMode::kWait}); });
  while (engine->status().state != EngineState::kPausing)
    std::this_thread::yield();
  EXPECT_EQ(refusal(), ErrorCode::kUnavailable) << "the gate is closing";
  ASSERT_TRUE(engine->wake_up(std::nullopt));
  sleeper.join();
  ASSERT_FALSE(*slept);
  EXPECT_EQ(slept->error().code, ErrorCode::kCancelled);
  EXPECT_EQ(collector.wait().tokens.size(), 1900U);
}

TEST_F(EngineTest, APauseQueuesRequestsAndResumeRunsThem) {
  ASSERT_TRUE(engine->pause(PauseMode::kKeep, false));
  EXPECT_TRUE(engine->status().is_sleeping) << "as vLLM defines it";
  Collector collector;
  ASSERT_TRUE(engine->submit(request(5), collector.sink()));
  EXPECT_FALSE(collector.finished());
  ASSERT_TRUE(engine->resume());
  EXPECT_EQ(collector.wait().tokens.size(), 12U);
  ASSERT_TRUE(engine->sleep({.level = 0}));
  ASSERT_TRUE(engine->wake_up(std::vector<std::string>{"scheduling"}));
  EXPECT_EQ(engine->status().state, EngineState::kRunning);
}

TEST_F(EngineTest, RepeatedAndMixedCallsHaveDefinedAnswers) {
  EXPECT_FALSE(engine->wake_up(std::nullopt)->changed);
  ASSERT_TRUE(engine->sleep({.level = 1})->changed);
  EXPECT_FALSE(engine->sleep({.level = 1})->changed);
  EXPECT_EQ(engine->resume().error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(engine->reload_weights().error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(engine->release_kv_cache_memory().error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(engine->wake_up(std::vector<std::string>{"weight"}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(engine->status().state, EngineState::kAsleep);
  ASSERT_TRUE(engine->wake_up(std::vector<std::string>{"kv_cache"}));
  ASSERT_TRUE(engine->wake_up(std::vector<std::string>{"kv_cache", "weights"}))
      << "one awake, one asleep: wakes the asleep one";
  EXPECT_EQ(engine->status().state, EngineState::kRunning);
  EXPECT_EQ(engine->sleep({.level = 3}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(engine->sleep({.level = -1}).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(EngineTest, ASecondSleepGoesDeeper) {
  const auto before = ask(20);
  ASSERT_TRUE(engine->sleep({.level = 1}));
  EXPECT_GT(engine->status().memory.at("weights").backed_up, 0U);
  ASSERT_TRUE(engine->sleep({.level = 2})->changed);
  EXPECT_EQ(engine->status().memory.at("weights").backed_up, 0U);
  ASSERT_TRUE(engine->wake_up(std::nullopt));
  EXPECT_EQ(refusal(), ErrorCode::kUnavailable);
  ASSERT_TRUE(engine->reload_weights());
  EXPECT_EQ(ask(20), before);
}

TEST_F(EngineTest, ALighterSleepCannotBringDiscardedWeightsBackAndSaysSo) {
  ASSERT_TRUE(engine->sleep({.level = 2}));
  EXPECT_EQ(engine->sleep({.level = 1}).error().code, ErrorCode::kFailedPrecondition);
  EXPECT_FALSE(engine->sleep({.level = 2})->changed);
  ASSERT_TRUE(engine->wake_up(std::nullopt));
  EXPECT_EQ(engine->sleep({.level = 1}).error().code, ErrorCode::kFailedPrecondition);
  ASSERT_TRUE(engine->reload_weights());
  EXPECT_TRUE(engine->sleep({.level = 1}));
}

TEST_F(EngineTest, ASleepAfterAPartialWakeUpPutsTheRestToSleepAgain) {
  const auto before = ask(20);
  ASSERT_TRUE(engine->sleep({.level = 1}));
  ASSERT_TRUE(engine->wake_up(std::vector<std::string>{"kv_cache"}));
  EXPECT_TRUE(engine->sleep({.level = 1})->changed);
  for (const auto& [tag, usage] : engine->status().memory)
    EXPECT_EQ(usage.mapped, 0U) << tag;
  ASSERT_TRUE(engine->wake_up(std::nullopt));
  EXPECT_EQ(ask(20), before);
}

TEST_F(EngineTest, TooLittleHostMemoryIsRefusedBeforeAnyRequestIsTouched) {
  EngineConfig poor = config();
  poor.host_memory_limit = 1000;
  start(poor);
  Collector collector;
  ASSERT_TRUE(engine->submit(request(40, 300), collector.sink()));
  const auto report = engine->sleep({.level = 1});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(collector.wait().finished, FinishReason::kLength);
  ASSERT_TRUE(engine->sleep({.level = 2})) << "level 2 needs no host memory";
}

TEST_F(EngineTest, BackupPoliciesKeepReleaseOrReadTheFile) {
  const auto expected = ask(20);
  for (const WeightBackup policy : {WeightBackup::kRelease, WeightBackup::kFile}) {
    EngineConfig other = config();
    other.weight_backup = policy;
    start(other);
    const auto slept = engine->sleep({.level = 1});
    ASSERT_TRUE(slept);
    EXPECT_EQ(slept->memory.tags.at("weights").copied_out > 0, policy == WeightBackup::kRelease);
    ASSERT_TRUE(engine->wake_up(std::nullopt));
    EXPECT_EQ(engine->status().memory.at("weights").backed_up, 0U);
    EXPECT_EQ(ask(20), expected);
  }
}

TEST_F(EngineTest, AModelFileThatChangedIsNoticedByTheFilePolicy) {
  const std::string path = ::testing::TempDir() + "changing.gguf";
  ASSERT_TRUE(testing::write_tiny_model(path, {.type = format::GgmlType::kQ8_0}));
  EngineConfig from_file = config();
  from_file.model = path;
  from_file.weight_backup = WeightBackup::kFile;
  start(from_file);
  const auto expected = ask(20);
  ASSERT_TRUE(engine->sleep({.level = 1}));
  ASSERT_TRUE(testing::write_tiny_model(path, {.type = format::GgmlType::kQ8_0, .seed = 2}));
  EXPECT_EQ(engine->wake_up(std::nullopt).error().code, ErrorCode::kDataLoss);
  EXPECT_EQ(engine->status().state, EngineState::kAsleep);
  ASSERT_TRUE(testing::write_tiny_model(path, {.type = format::GgmlType::kQ8_0}));
  ASSERT_TRUE(engine->wake_up(std::nullopt));
  EXPECT_EQ(ask(20), expected);
}

TEST_F(EngineTest, BadRequestsAreRefusedWithTheFieldTheyFailOn) {
  const auto param = [&](const Request& bad) {
    const auto id = engine->submit(bad, [](RequestOutput) {});
    return id ? std::string("accepted") : id.error().param;
  };
  Request bad = request(4);
  bad.prompt = {};
  EXPECT_EQ(param(bad), "prompt");
  bad.prompt = {1, 2, 100000};
  EXPECT_EQ(param(bad), "prompt");
  bad = request(2048);
  EXPECT_EQ(param(bad), "prompt");
  bad = request(4);
  bad.sampling.temperature = -1;
  EXPECT_EQ(param(bad), "temperature");
  bad = request(4, 0);
  EXPECT_EQ(param(bad), "max_tokens");
}

TEST_F(EngineTest, AMissingModelFailsTheLoadAndEveryCallSaysSo) {
  EngineConfig missing = config();
  missing.model = "/nonexistent.gguf";
  engine = Engine::start(missing);
  EXPECT_FALSE(engine->wait_until_loaded());
  EXPECT_EQ(engine->status().state, EngineState::kFailed);
  EXPECT_EQ(refusal(), ErrorCode::kUnavailable);
  EXPECT_EQ(engine->sleep({}).error().code, ErrorCode::kFailedPrecondition);
  engine->abort(1);
  engine->abort_all();
  const double before = processor_seconds();
  std::this_thread::sleep_for(milliseconds(100));  // allowed: it must be idle meanwhile
  EXPECT_LT(processor_seconds() - before, 0.05);
}

TEST_F(EngineTest, ShutdownEndsEveryRequestAndCancelsASleep) {
  Collector running;
  ASSERT_TRUE(engine->submit(request(40, 1900), running.sink()));
  running.wait_for_tokens(1);
  std::optional<Result<TransitionReport>> slept;
  std::thread sleeper([&] { slept = engine->sleep({.level = 1, .mode = PauseMode::kWait}); });
  while (engine->status().state != EngineState::kPausing)
    std::this_thread::yield();
  engine->shutdown(milliseconds(0));
  sleeper.join();
  EXPECT_EQ(slept->error().code, ErrorCode::kCancelled);
  EXPECT_EQ(running.wait().finished, FinishReason::kAbort);
}

TEST_F(EngineTest, ManyRequestsAtOnceAnswerAsTheyDoAlone) {
  std::vector<Answer> alone;
  for (int i = 0; i < 12; ++i) {
    Collector collector;
    ASSERT_TRUE(
        engine->submit(request(20 + 13 * static_cast<std::size_t>(i), 30, i), collector.sink()));
    alone.push_back(collector.wait());
  }
  std::vector<Collector> together(12);
  for (int i = 0; i < 12; ++i)
    ASSERT_TRUE(engine->submit(request(20 + 13 * static_cast<std::size_t>(i), 30, i),
                               together[static_cast<std::size_t>(i)].sink()));
  for (std::size_t i = 0; i < together.size(); ++i)
    EXPECT_EQ(together[i].wait(), alone[i]) << i;
  EXPECT_EQ(engine->status().blocks_used, 0U);
}

TEST_F(EngineTest, AThousandRandomCyclesLeaveNothingBehindAndChangeNoAnswer) {
  std::mt19937 random(3);
  const Answer expected = ask(50);
  ASSERT_TRUE(engine->sleep({.level = 1}));
  ASSERT_TRUE(engine->wake_up(std::nullopt));
  const auto memory = engine->status().memory;
  const auto blocks = *block_references();
  const auto resident = *resident_memory();
  for (int cycle = 0; cycle < 1000; ++cycle) {
    const bool kv_only = random() % 4 == 0;
    const int level = 1 + static_cast<int>(random() % 2);
    if (kv_only) {
      ASSERT_TRUE(engine->release_kv_cache_memory());
    } else {
      ASSERT_TRUE(engine->sleep({.level = level}));
    }
    if (random() % 2 == 0) {
      ASSERT_TRUE(
          engine->wake_up(std::vector<std::string>{random() % 2 == 0 ? "weights" : "kv_cache"}));
    }
    ASSERT_TRUE(engine->wake_up(std::nullopt));
    if (!kv_only && level == 2) {
      ASSERT_TRUE(engine->reload_weights());
    }
    ASSERT_EQ(ask(50), expected) << "cycle " << cycle;
  }
  EXPECT_EQ(block_references()->descriptors, blocks.descriptors);
  EXPECT_EQ(block_references()->mappings, blocks.mappings);
  EXPECT_LT(*resident_memory(), resident + (std::uint64_t{4} << 20));
  for (const auto& [tag, usage] : engine->status().memory) {
    EXPECT_EQ(usage.mapped, memory.at(tag).mapped) << tag;
    EXPECT_EQ(usage.leaked, 0U) << tag;
    EXPECT_LE(usage.backed_up, memory.at(tag).backed_up) << tag;
  }
}

}  // namespace
}  // namespace dormouse

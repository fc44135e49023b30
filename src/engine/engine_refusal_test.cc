// What a user sees of the engine when it refuses, fails or goes on for long.
#include "engine/engine_fixture.h"

namespace dormouse {
namespace {

TEST_F(EngineTest, ReloadingForgetsWhatTheOldWeightsComputed) {
  ask(100);
  ASSERT_TRUE(engine->reload_weights());
  EXPECT_EQ(ask(100).cached_tokens, 0U);
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

TEST_F(EngineTest, ADrainDoesNotWaitForRequestsThatCannotRun) {
  Collector collector;
  ASSERT_TRUE(engine->submit(request(40, 400), collector.sink()));
  collector.wait_for_tokens(2);
  ASSERT_TRUE(engine->sleep({.level = 2, .mode = PauseMode::kKeep}));
  ASSERT_TRUE(engine->wake_up(std::nullopt));
  ASSERT_TRUE(engine->pause(PauseMode::kWait, false)) << "the weights are invalid: nothing can run";
  ASSERT_TRUE(engine->reload_weights());
  ASSERT_TRUE(engine->resume());
  EXPECT_EQ(collector.wait().tokens.size(), 400U);
}

TEST_F(EngineTest, AReloadOfAMissingOrOtherFileLeavesTheOldWeightsServing) {
  const std::string path = ::testing::TempDir() + "vanishing.gguf";
  ASSERT_TRUE(testing::write_tiny_model(path));
  EngineConfig vanishing = config();
  vanishing.model = path;
  start(vanishing);
  const auto before = ask(20);
  std::filesystem::remove(path);
  EXPECT_FALSE(engine->reload_weights());
  EXPECT_EQ(ask(20), before);
  ASSERT_TRUE(testing::write_tiny_model(path, {.layers = 3}));
  EXPECT_EQ(engine->reload_weights().error().code, ErrorCode::kFailedPrecondition);
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
#ifndef __SANITIZE_ADDRESS__  // which keeps for a while what was freed
  EXPECT_LT(*resident_memory(), resident + (std::uint64_t{4} << 20));
#endif
  for (const auto& [tag, usage] : engine->status().memory) {
    EXPECT_EQ(usage.mapped, memory.at(tag).mapped) << tag;
    EXPECT_EQ(usage.leaked, 0U) << tag;
    EXPECT_LE(usage.backed_up, memory.at(tag).backed_up) << tag;
  }
}

}  // namespace
}  // namespace dormouse

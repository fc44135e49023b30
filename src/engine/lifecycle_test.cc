// Several ranks, some of which fail: what the engine then says and does.
#include <gtest/gtest.h>

#include <future>

#include "engine/engine_core.h"
#include "engine/fake_executor.h"
#include "testing/tiny_model.h"

namespace dormouse {
namespace {

const Error kBroken{ErrorCode::kInternal, "rank 1 is broken"};

class LifecycleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    EngineConfig config;
    config.model = ::testing::TempDir() + "lifecycle_test.gguf";
    ASSERT_TRUE(testing::write_tiny_model(config.model));
    const auto tokens = static_cast<std::uint32_t>(testing::tiny_vocabulary().size());
    ranks->ranks.resize(2);
    ranks->facts = {.vocab_size = tokens, .max_model_len = 128, .num_blocks = 32, .world_size = 2};
    engine = std::make_unique<EngineCore>(config, [&](const EngineConfig&) {
      return std::make_unique<testing::FakeExecutor>(ranks);
    });
    ASSERT_TRUE(engine->wait_until_loaded());
  }

  Status submit() {
    Request request;
    request.prompt = {3, 4, 5};
    request.sampling.max_tokens = 1;
    const auto id = engine->submit(request, [](RequestOutput) {});
    if (!id)
      return tl::unexpected(id.error());
    return {};
  }

  std::shared_ptr<testing::FakeExecutor::Shared> ranks =
      std::make_shared<testing::FakeExecutor::Shared>();
  std::unique_ptr<EngineCore> engine;
};

TEST_F(LifecycleTest, OneRankThatCommittedMakesTheEngineAsleepAndAWakeUpRecovers) {
  ranks->ranks[1].sleep_errors = {kBroken};
  const auto slept = engine->sleep({.level = 1});
  ASSERT_FALSE(slept);
  EXPECT_EQ(slept.error().message, kBroken.message);
  EXPECT_EQ(engine->status().state, EngineState::kAsleep);
  EXPECT_EQ(submit().error().code, ErrorCode::kUnavailable);
  ASSERT_TRUE(engine->wake_up(std::nullopt));
  EXPECT_EQ(engine->status().state, EngineState::kRunning);
  EXPECT_TRUE(submit());
}

TEST_F(LifecycleTest, WhenNoRankCommittedTheEngineServesOn) {
  for (auto& rank : ranks->ranks)
    rank.sleep_errors = {kBroken};
  ASSERT_FALSE(engine->sleep({.level = 1}));
  EXPECT_EQ(engine->status().state, EngineState::kRunning);
  std::promise<void> answered;
  Request request;
  request.prompt = {3, 4, 5};
  ASSERT_TRUE(engine->submit(request, [&](RequestOutput output) {
    if (output.finished)
      answered.set_value();
  }));
  EXPECT_EQ(answered.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready);
  engine->shutdown(std::chrono::milliseconds(0));
}

TEST_F(LifecycleTest, EveryRankIsAskedThoughTheFirstFailed) {
  ranks->ranks[0].sleep_errors = {kBroken};
  ASSERT_FALSE(engine->sleep({.level = 1}));
  EXPECT_EQ(ranks->ranks[1].calls, std::vector<std::string>{"sleep"});
}

TEST_F(LifecycleTest, ARegistrationThatWasNotRestoredDegradesTheEngineUntilTheNextWakeUp) {
  for (auto& rank : ranks->ranks)
    rank.sleep_errors = {kBroken};
  ranks->ranks[0].state.restored = false;
  ASSERT_FALSE(engine->sleep({.level = 1}));
  const EngineStatus status = engine->status();
  EXPECT_EQ(status.state, EngineState::kDegraded);
  EXPECT_TRUE(status.is_sleeping);
  EXPECT_FALSE(status.cause.empty());
  EXPECT_EQ(submit().error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(engine->resume().error().code, ErrorCode::kFailedPrecondition);
  ASSERT_TRUE(engine->wake_up(std::nullopt));
  EXPECT_EQ(engine->status().state, EngineState::kRunning);
  EXPECT_TRUE(submit());
}

TEST_F(LifecycleTest, AWakeUpThatFailsOnOneRankLeavesTheGateClosedAndDropsNoBackup) {
  ASSERT_TRUE(engine->sleep({.level = 1}));
  ranks->ranks[1].wake_up_errors = {kBroken};
  ASSERT_FALSE(engine->wake_up(std::nullopt));
  EXPECT_EQ(engine->status().state, EngineState::kAsleep);
  EXPECT_EQ(submit().error().code, ErrorCode::kUnavailable);
  for (const auto& rank : ranks->ranks)
    EXPECT_EQ(rank.calls, (std::vector<std::string>{"sleep", "wake_up"})) << "no commit yet";
  ASSERT_TRUE(engine->wake_up(std::nullopt));
  for (const auto& rank : ranks->ranks)
    EXPECT_EQ(rank.calls.back(), "commit");
  EXPECT_EQ(engine->status().state, EngineState::kRunning);
}

TEST_F(LifecycleTest, NoStepRunsWhileAnyRankIsAsleep) {
  ranks->ranks[1].sleep_errors = {kBroken};
  ASSERT_TRUE(submit());
  ASSERT_FALSE(engine->sleep({.level = 1, .mode = PauseMode::kKeep}));
  const auto steps = ranks->steps;
  EXPECT_FALSE(submit());
  EXPECT_EQ(engine->resume().error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(ranks->steps, steps);
}

TEST_F(LifecycleTest, NoStepRunsBeforeEveryRankHasItsWeightsAgain) {
  ASSERT_TRUE(engine->pause(PauseMode::kKeep, false));
  ASSERT_TRUE(submit());
  ASSERT_TRUE(engine->sleep({.level = 2, .mode = PauseMode::kKeep}));
  ranks->ranks[0].state.weights_valid = false;
  ASSERT_TRUE(engine->wake_up(std::nullopt));
  EXPECT_EQ(submit().error().code, ErrorCode::kUnavailable);
  const auto resumed = engine->resume();
  ASSERT_FALSE(resumed) << "it would claim to serve";
  EXPECT_EQ(resumed.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_NE(resumed.error().message.find("POST /reload_weights"), std::string::npos);
  for (int turn = 0; turn < 50; ++turn)
    ASSERT_TRUE(engine->reset_prefix_cache(false, false)) << "gives the loop time for a step";
  EXPECT_EQ(ranks->steps, 0U);
}

TEST_F(LifecycleTest, WhatWasCachedIsForgottenThoughOneRankKeptItsMemory) {
  const auto hits_with_one_more_prompt = [&] {
    Request request;
    request.prompt.assign(40, 7);
    request.sampling.max_tokens = 1;
    std::promise<void> finished;
    EXPECT_TRUE(engine->submit(request, [&](RequestOutput output) {
      if (output.finished)
        finished.set_value();
    }));
    finished.get_future().wait();
    return engine->counters().prefix_cache_hits;
  };
  EXPECT_EQ(hits_with_one_more_prompt(), 0U);
  const auto hits = hits_with_one_more_prompt();
  EXPECT_GT(hits, 0U);
  ranks->ranks[1].sleep_errors = {kBroken};
  ASSERT_FALSE(engine->sleep({.level = 1}));
  ASSERT_TRUE(engine->wake_up(std::nullopt));
  EXPECT_EQ(hits_with_one_more_prompt(), hits);
}

TEST_F(LifecycleTest, AWakeUpThatComesDuringTheCommitWakesWhatFellAsleep) {
  std::thread waker;
  ranks->on_sleep = [&] {
    ranks->on_sleep = nullptr;
    waker = std::thread([&] { EXPECT_TRUE(engine->wake_up(std::nullopt)); });
  };
  (void)engine->sleep({.level = 1});
  waker.join();
  EXPECT_EQ(engine->status().state, EngineState::kRunning);
}

}  // namespace
}  // namespace dormouse

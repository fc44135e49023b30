// What a user sees of the engine when all is well.
#include "engine/engine_fixture.h"

namespace dormouse {
namespace {

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

TEST_F(EngineTest, KnowsItsContextAsSoonAsThereIsATokenizer) {
  for (int i = 0; i < 20; ++i) {
    engine = Engine::start(config());
    while (engine->tokenizer() == nullptr)
      std::this_thread::yield();
    ASSERT_EQ(engine->status().max_model_len, 2048) << "start " << i;
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
  EXPECT_EQ(after.step_tokens.sum() - before.step_tokens.sum(), 103);
  const auto up_to = [&](double bound) {
    const auto bucket = std::ranges::find(kStepTokenBounds, bound) - kStepTokenBounds.begin();
    const auto i = static_cast<std::size_t>(bucket);
    return after.step_tokens.counts()[i] - before.step_tokens.counts()[i];
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

TEST_F(EngineTest, KvCacheMemoryCanBeReleasedUnderAPauseThatKeepsRequests) {
  const Answer undisturbed = ask(40, 300);
  Collector collector;
  ASSERT_TRUE(engine->submit(request(40, 300), collector.sink()));
  collector.wait_for_tokens(2);
  EXPECT_EQ(engine->release_kv_cache_memory().error().code, ErrorCode::kFailedPrecondition);
  ASSERT_TRUE(engine->pause(PauseMode::kKeep, false));
  ASSERT_TRUE(engine->release_kv_cache_memory());
  ASSERT_TRUE(engine->pause(PauseMode::kKeep, false));
  EXPECT_TRUE(engine->status().is_paused);
  ASSERT_TRUE(engine->wake_up(std::nullopt));
  EXPECT_EQ(collector.wait(), undisturbed);
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

}  // namespace
}  // namespace dormouse

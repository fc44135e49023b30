#include "scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "scheduler/fake_model.h"

namespace dormouse {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr TokenId kEos = 99;

std::vector<TokenId> tokens_from(TokenId first, std::size_t count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Request request_of(std::vector<TokenId> prompt, std::uint32_t max_tokens = 4) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampling.max_tokens = max_tokens;
  return request;
}

std::vector<RequestId> ids_of(const StepPlan& plan) {
  std::vector<RequestId> ids;
  for (const ScheduledSequence& sequence : plan.sequences)
    ids.push_back(sequence.id);
  return ids;
}

StepResult answer(const StepPlan& plan, TokenId token) {
  StepResult result;
  result.step = plan.step;
  for (const ScheduledSequence& sequence : plan.sequences)
    if (sequence.samples)
      result.sampled.push_back({sequence.id, {token}});
  return result;
}

class SchedulerTest : public ::testing::Test {
 protected:
  static SchedulerConfig small_config() {
    SchedulerConfig config;
    config.max_num_seqs = 4;
    config.max_num_batched_tokens = 16;
    config.block_size = 4;
    config.max_model_len = 64;
    config.end_of_generation = {kEos, 98};  // in no order
    return config;
  }

  void build(SchedulerConfig config, std::uint32_t num_blocks) {
    scheduler_.reset();
    pool_ = std::make_unique<BlockPool>(num_blocks);
    scheduler_ = std::make_unique<Scheduler>(config, *pool_);
  }

  void SetUp() override { build(small_config(), 32); }

  void add(RequestId id, Request request) {
    ASSERT_TRUE(scheduler_->add(id, std::move(request)).has_value());
  }

  // One step in which every sampling sequence gets `token`.
  std::vector<RequestOutput> step(TokenId token = 7) {
    const StepPlan plan = scheduler_->plan();
    if (plan.sequences.empty())
      return {};
    return scheduler_->complete(plan, answer(plan, token));
  }

  // The last output once nothing is left to run.
  RequestOutput run_to_end(TokenId token = 7) {
    RequestOutput last;
    while (scheduler_->has_unfinished())
      for (RequestOutput& output : step(token))
        last = std::move(output);
    return last;
  }

  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(SchedulerTest, PlansNothingWhenIdle) {
  EXPECT_THAT(scheduler_->plan().sequences, IsEmpty());
  EXPECT_FALSE(scheduler_->step_in_flight());
  EXPECT_FALSE(scheduler_->has_unfinished());
}

TEST_F(SchedulerTest, RefusesAnEmptyPrompt) {
  const Status status = scheduler_->add(1, request_of({}));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(status.error().param, "prompt");
  EXPECT_FALSE(scheduler_->has_unfinished());
}

TEST_F(SchedulerTest, RefusesAPromptThatLeavesNoRoomForOutput) {
  const Status status = scheduler_->add(1, request_of(tokens_from(0, 64)));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.error().message, HasSubstr("64 tokens"));
  EXPECT_TRUE(scheduler_->add(2, request_of(tokens_from(0, 63))));
}

TEST_F(SchedulerTest, RefusesToGenerateNothing) {
  const Status status = scheduler_->add(1, request_of({1}, 0));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().param, "max_tokens");
}

TEST_F(SchedulerTest, RefusesWhatCanNeverFitAndRunsWhatJustFits) {
  build(small_config(), 3);
  const Status status = scheduler_->add(1, request_of(tokens_from(0, 10), 4));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(status.error().message, HasSubstr("4 KV blocks of 4 tokens, but there are 3"));
  add(2, request_of(tokens_from(0, 10), 3));
  EXPECT_EQ(run_to_end().finished, FinishReason::kLength);
}

TEST_F(SchedulerTest, ComputesAPromptAndThenOneTokenAStep) {
  add(1, request_of({1, 2, 3}, 2));
  StepPlan plan = scheduler_->plan();
  ASSERT_THAT(plan.sequences, SizeIs(1));
  EXPECT_THAT(plan.sequences[0].tokens, ElementsAre(1, 2, 3));
  EXPECT_TRUE(plan.sequences[0].samples);
  EXPECT_EQ(plan.sequences[0].sample_index, 0U);
  EXPECT_EQ(plan.total_tokens, 3U);
  EXPECT_TRUE(scheduler_->step_in_flight());
  const auto first = scheduler_->complete(plan, answer(plan, 50));
  ASSERT_THAT(first, SizeIs(1));
  EXPECT_EQ(first[0].tokens.at(0).token, 50);
  EXPECT_EQ(first[0].prompt_tokens, 3U);
  EXPECT_FALSE(first[0].finished);

  plan = scheduler_->plan();
  EXPECT_THAT(plan.sequences.at(0).tokens, ElementsAre(50));
  EXPECT_EQ(plan.sequences[0].first_position, 3U);
  EXPECT_EQ(plan.sequences[0].sample_index, 1U);
  const auto second = scheduler_->complete(plan, answer(plan, 51));
  EXPECT_EQ(second.at(0).finished, FinishReason::kLength);
  EXPECT_FALSE(scheduler_->has_unfinished());
  EXPECT_EQ(scheduler_->blocks_used(), 0U);
}

TEST_F(SchedulerTest, SplitsALongPromptAndSamplesAfterItsEnd) {
  add(1, request_of(tokens_from(0, 20)));
  StepPlan plan = scheduler_->plan();
  EXPECT_THAT(plan.sequences.at(0).tokens, SizeIs(16));
  EXPECT_THAT(plan.sequences[0].block_table, SizeIs(4));
  EXPECT_FALSE(plan.sequences[0].samples);
  EXPECT_THAT(scheduler_->complete(plan, answer(plan, 7)), IsEmpty());

  plan = scheduler_->plan();
  EXPECT_EQ(plan.sequences.at(0).first_position, 16U);
  EXPECT_THAT(plan.sequences[0].tokens, ElementsAre(16, 17, 18, 19));
  EXPECT_THAT(plan.sequences[0].block_table, SizeIs(5));
  EXPECT_TRUE(plan.sequences[0].samples);
}

TEST_F(SchedulerTest, GivesPromptsWhatDecodesLeaveOfTheBudget) {
  add(1, request_of(tokens_from(0, 40)));
  add(2, request_of({1}));
  Request urgent = request_of({2});
  urgent.priority = -1;
  add(3, std::move(urgent));
  const StepPlan first = scheduler_->plan();
  EXPECT_THAT(ids_of(first), ElementsAre(3, 1));
  EXPECT_EQ(first.total_tokens, 16U);
  scheduler_->complete(first, answer(first, 7));

  const StepPlan second = scheduler_->plan();
  EXPECT_THAT(ids_of(second), ElementsAre(3, 1));
  EXPECT_THAT(second.sequences[0].tokens, ElementsAre(7));
  EXPECT_THAT(second.sequences[1].tokens, SizeIs(15));
}

TEST_F(SchedulerTest, ServesADecodeBeforeAPromptThatOutranksIt) {
  Request unimportant = request_of({2});
  unimportant.priority = 1;
  add(1, std::move(unimportant));
  step();
  add(2, request_of(tokens_from(0, 40)));
  step();
  const StepPlan plan = scheduler_->plan();
  EXPECT_THAT(ids_of(plan), ElementsAre(1, 2));
  EXPECT_EQ(plan.sequences[1].tokens.size(), 15U);
}

TEST_F(SchedulerTest, NeverRunsMoreThanMaxNumSeqs) {
  for (RequestId id = 1; id <= 6; ++id)
    add(id, request_of({1}));
  EXPECT_THAT(ids_of(scheduler_->plan()), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(scheduler_->num_running(), 4U);
  EXPECT_EQ(scheduler_->num_waiting(), 2U);
}

TEST_F(SchedulerTest, AdmitsByPriorityAndThenByArrival) {
  for (RequestId id = 1; id <= 3; ++id) {
    Request request = request_of({1});
    request.priority = id == 3 ? -1 : 0;
    add(id, std::move(request));
  }
  EXPECT_THAT(ids_of(scheduler_->plan()), ElementsAre(3, 1, 2));
}

TEST_F(SchedulerTest, StopsAtTheEndOfGeneration) {
  add(1, request_of({1}, 10));
  const RequestOutput output = step(kEos).at(0);
  EXPECT_EQ(output.finished, FinishReason::kStop);
  EXPECT_EQ(output.stop_token, kEos);
  EXPECT_THAT(output.tokens, SizeIs(1));
  EXPECT_FALSE(scheduler_->has_unfinished());
}

TEST_F(SchedulerTest, IgnoresTheEndOfGenerationWhenAskedTo) {
  Request request = request_of({1}, 3);
  request.sampling.ignore_eos = true;
  add(1, std::move(request));
  EXPECT_FALSE(step(kEos).at(0).finished);
  const RequestOutput last = run_to_end(kEos);
  EXPECT_EQ(last.finished, FinishReason::kLength);
  EXPECT_FALSE(last.stop_token);
}

TEST_F(SchedulerTest, StopsAtTheRequestsOwnStopTokens) {
  Request request = request_of({1}, 10);
  request.sampling.stop_token_ids = {41, 42};
  request.sampling.ignore_eos = true;
  add(1, std::move(request));
  EXPECT_FALSE(step(40).at(0).finished);
  const RequestOutput output = step(42).at(0);
  EXPECT_EQ(output.finished, FinishReason::kStop);
  EXPECT_EQ(output.stop_token, 42);
}

TEST_F(SchedulerTest, DoesNotStopBeforeMinTokens) {
  Request request = request_of({1}, 10);
  request.sampling.min_tokens = 3;
  add(1, std::move(request));
  EXPECT_FALSE(step(kEos).at(0).finished);
  EXPECT_FALSE(step(kEos).at(0).finished);
  EXPECT_EQ(step(kEos).at(0).finished, FinishReason::kStop);
}

TEST_F(SchedulerTest, EndsAtTheContextsLengthWhateverMinTokensSays) {
  Request request = request_of(tokens_from(0, 60), 100);
  request.sampling.min_tokens = 100;
  add(1, std::move(request));
  EXPECT_EQ(run_to_end().finished, FinishReason::kLength);
  EXPECT_EQ(scheduler_->counters().generation_tokens, 4U);
}

TEST_F(SchedulerTest, ReusesAPrefixButComputesTheLastToken) {
  add(1, request_of(tokens_from(0, 12), 1));
  EXPECT_EQ(run_to_end().cached_tokens, 0U);
  add(2, request_of(tokens_from(0, 12), 1));
  const StepPlan plan = scheduler_->plan();
  EXPECT_EQ(plan.sequences.at(0).first_position, 8U);
  EXPECT_THAT(plan.sequences[0].tokens, ElementsAre(8, 9, 10, 11));
  EXPECT_EQ(scheduler_->complete(plan, answer(plan, 7)).at(0).cached_tokens, 8U);
  EXPECT_EQ(scheduler_->counters().prefix_cache_queries, 24U);
  EXPECT_EQ(scheduler_->counters().prefix_cache_hits, 8U);
}

TEST_F(SchedulerTest, SharesTheBlocksOfARunningRequest) {
  add(1, request_of(tokens_from(0, 9)));
  step();
  add(2, request_of(tokens_from(0, 9)));
  const StepPlan plan = scheduler_->plan();
  ASSERT_THAT(ids_of(plan), ElementsAre(1, 2));
  EXPECT_EQ(plan.sequences[0].block_table[1], plan.sequences[1].block_table[1]);
  EXPECT_NE(plan.sequences[0].block_table[2], plan.sequences[1].block_table[2]);
  EXPECT_EQ(pool_->holders(plan.sequences[0].block_table[0]), 2U);
}

TEST_F(SchedulerTest, ReusesGeneratedTokensInTheNextTurn) {
  add(1, request_of(tokens_from(0, 4), 5));
  run_to_end(7);
  add(2, request_of({0, 1, 2, 3, 7, 7, 7, 7, 7, 8}));
  EXPECT_EQ(scheduler_->plan().sequences.at(0).first_position, 8U);
}

TEST_F(SchedulerTest, NeverSharesBetweenSalts) {
  Request request = request_of(tokens_from(0, 9), 1);
  request.cache_salt = "alice";
  add(1, request);
  run_to_end();
  request.cache_salt = "bob";
  add(2, request);
  EXPECT_EQ(run_to_end().cached_tokens, 0U);
  request.cache_salt = "alice";
  add(3, request);
  EXPECT_EQ(run_to_end().cached_tokens, 8U);
}

TEST_F(SchedulerTest, SharesNothingWhenPrefixCachingIsOff) {
  SchedulerConfig config = small_config();
  config.enable_prefix_caching = false;
  build(config, 32);
  for (RequestId id = 1; id <= 2; ++id) {
    add(id, request_of(tokens_from(0, 9), 1));
    EXPECT_EQ(run_to_end().cached_tokens, 0U);
  }
  EXPECT_EQ(pool_->cached(), 0U);
  EXPECT_EQ(scheduler_->counters().prefix_cache_queries, 0U);
}

TEST_F(SchedulerTest, PublishesBlocksOnlyOnceTheirStepCompleted) {
  add(1, request_of(tokens_from(0, 12)));
  const StepPlan plan = scheduler_->plan();
  EXPECT_EQ(pool_->cached(), 0U);
  scheduler_->complete(plan, answer(plan, 7));
  EXPECT_EQ(pool_->cached(), 3U);
}

TEST_F(SchedulerTest, PublishesNothingOfAFailedStep) {
  add(1, request_of(tokens_from(0, 12)));
  add(2, request_of(tokens_from(0, 40)));
  const StepPlan plan = scheduler_->plan();
  ASSERT_THAT(ids_of(plan), ElementsAre(1, 2));
  add(3, request_of({1}));
  const auto outputs = scheduler_->fail_step(plan, Error{ErrorCode::kInternal, "rank 0 fell"});
  ASSERT_THAT(outputs, SizeIs(2));
  EXPECT_EQ(outputs[0].finished, FinishReason::kError);
  EXPECT_EQ(outputs[0].error.message, "rank 0 fell");
  EXPECT_EQ(pool_->cached(), 0U);
  EXPECT_EQ(pool_->used(), 0U);
  EXPECT_THAT(ids_of(scheduler_->plan()), ElementsAre(3));
}

TEST_F(SchedulerTest, PreemptsTheNewestWhenBlocksRunOut) {
  build(small_config(), 4);
  add(1, request_of(tokens_from(0, 8), 5));
  add(2, request_of(tokens_from(100, 8), 5));
  step();
  const StepPlan plan = scheduler_->plan();
  EXPECT_THAT(ids_of(plan), ElementsAre(1));
  EXPECT_EQ(scheduler_->num_waiting(), 1U);
  EXPECT_EQ(scheduler_->counters().preemptions, 1U);
  scheduler_->complete(plan, answer(plan, 7));
  const RequestOutput last = run_to_end();
  EXPECT_EQ(last.id, 2U);
  EXPECT_EQ(last.preemptions, 1U);
  EXPECT_EQ(scheduler_->counters().generation_tokens, 10U);
}

TEST_F(SchedulerTest, PreemptsTheLowestPriorityFirst) {
  build(small_config(), 4);
  Request unimportant = request_of(tokens_from(0, 8), 5);
  unimportant.priority = 1;
  add(1, std::move(unimportant));
  add(2, request_of(tokens_from(100, 8), 5));
  step();
  EXPECT_THAT(ids_of(scheduler_->plan()), ElementsAre(2));
}

TEST_F(SchedulerTest, KeepsTheBeginningOfAPromptCachedLongest) {
  build(small_config(), 4);
  add(1, request_of(tokens_from(0, 13), 1));
  run_to_end();
  add(2, request_of(tokens_from(100, 5), 1));  // takes the unfinished block and one cached one
  run_to_end();
  add(3, request_of(tokens_from(0, 13), 1));
  EXPECT_EQ(run_to_end().cached_tokens, 8U);
}

TEST_F(SchedulerTest, DoesNotLetASmallRequestOvertakeALargeOne) {
  build(small_config(), 4);
  add(1, request_of(tokens_from(0, 8), 5));
  step();
  add(2, request_of(tokens_from(100, 12), 1));
  add(3, request_of({1}));
  EXPECT_THAT(ids_of(scheduler_->plan()), ElementsAre(1));
}

TEST_F(SchedulerTest, ContinuesAfterPreemptAllWithTheSameRandomStream) {
  add(1, request_of(tokens_from(0, 5), 4));
  EXPECT_THAT(step(50), SizeIs(1));
  EXPECT_THAT(step(51), SizeIs(1));
  scheduler_->preempt_all();
  EXPECT_EQ(scheduler_->num_running(), 0U);
  EXPECT_EQ(scheduler_->num_waiting(), 1U);
  EXPECT_EQ(pool_->used(), 0U);
  pool_->forget_all();

  const StepPlan plan = scheduler_->plan();
  EXPECT_THAT(plan.sequences.at(0).tokens, ElementsAre(0, 1, 2, 3, 4, 50, 51));
  EXPECT_EQ(plan.sequences[0].first_position, 0U);
  EXPECT_EQ(plan.sequences[0].sample_index, 2U);
  const auto outputs = scheduler_->complete(plan, answer(plan, 52));
  ASSERT_THAT(outputs, SizeIs(1));
  EXPECT_THAT(outputs[0].tokens, SizeIs(1));
  EXPECT_EQ(outputs[0].preemptions, 1U);
  EXPECT_EQ(scheduler_->counters().prompt_tokens, 5U);
}

TEST_F(SchedulerTest, FindsItsOwnBlocksAgainAfterAPreemptionAndCountsThemOnce) {
  add(1, request_of(tokens_from(0, 9)));
  step();
  scheduler_->preempt_all();
  EXPECT_EQ(scheduler_->plan().sequences.at(0).first_position, 8U);
  EXPECT_EQ(scheduler_->counters().prefix_cache_queries, 9U);
  EXPECT_EQ(scheduler_->counters().prefix_cache_hits, 0U);
}

TEST_F(SchedulerTest, AbortsAWaitingRequestAtOnce) {
  add(1, request_of({1}));
  const auto output = scheduler_->abort(1);
  ASSERT_TRUE(output);
  EXPECT_EQ(output->finished, FinishReason::kAbort);
  EXPECT_FALSE(scheduler_->abort(1));
  EXPECT_FALSE(scheduler_->abort(2));
  EXPECT_FALSE(scheduler_->has_unfinished());
}

TEST_F(SchedulerTest, FreesTheBlocksOfARequestAbortedBetweenStepsAtOnce) {
  add(1, request_of(tokens_from(0, 12)));
  step();
  EXPECT_TRUE(scheduler_->abort(1));
  EXPECT_EQ(scheduler_->blocks_used(), 0U);
}

TEST_F(SchedulerTest, HoldsTheBlocksOfAnAbortedRequestUntilItsStepCompletes) {
  add(1, request_of(tokens_from(0, 12)));
  const StepPlan plan = scheduler_->plan();
  EXPECT_TRUE(scheduler_->abort(1));
  EXPECT_EQ(scheduler_->num_running(), 0U);
  EXPECT_EQ(scheduler_->blocks_used(), 3U);
  EXPECT_TRUE(scheduler_->has_unfinished());
  EXPECT_THAT(scheduler_->complete(plan, answer(plan, 7)), IsEmpty());
  EXPECT_EQ(scheduler_->blocks_used(), 0U);
  EXPECT_FALSE(scheduler_->has_unfinished());
}

TEST_F(SchedulerTest, HoldsTheBlocksOfAnAbortedRequestUntilItsStepFails) {
  add(1, request_of(tokens_from(0, 12)));
  const StepPlan plan = scheduler_->plan();
  EXPECT_TRUE(scheduler_->abort(1));
  EXPECT_THAT(scheduler_->fail_step(plan, Error{}), IsEmpty());
  EXPECT_EQ(scheduler_->blocks_used(), 0U);
}

TEST_F(SchedulerTest, AbortsEverythingOnce) {
  for (RequestId id = 1; id <= 6; ++id)
    add(id, request_of({1}));
  const StepPlan plan = scheduler_->plan();
  EXPECT_THAT(scheduler_->abort_all(), SizeIs(6));
  EXPECT_THAT(scheduler_->abort_all(), IsEmpty());
  EXPECT_THAT(scheduler_->complete(plan, answer(plan, 7)), IsEmpty());
  EXPECT_EQ(scheduler_->counters().finished[static_cast<std::size_t>(FinishReason::kAbort)], 6U);
  EXPECT_EQ(scheduler_->blocks_used(), 0U);
}

TEST_F(SchedulerTest, FinishesOneRequestWithAnErrorAndLeavesTheOthers) {
  add(1, request_of({1}));
  add(2, request_of({2}));
  const auto output = scheduler_->finish_error(1, Error{ErrorCode::kInternal, "NaN in the logits"});
  EXPECT_EQ(output->finished, FinishReason::kError);
  EXPECT_EQ(output->error.message, "NaN in the logits");
  EXPECT_THAT(ids_of(scheduler_->plan()), ElementsAre(2));
}

TEST_F(SchedulerTest, PausedNewRunsWhatHasStartedEvenIfPreempted) {
  add(1, request_of(tokens_from(0, 5), 2));
  step();
  scheduler_->preempt_all();
  Request urgent = request_of({1});
  urgent.priority = -1;
  add(2, std::move(urgent));
  scheduler_->set_admission(PauseState::kPausedNew);
  EXPECT_TRUE(scheduler_->has_unfinished());
  EXPECT_EQ(run_to_end().id, 1U);
  EXPECT_THAT(scheduler_->plan().sequences, IsEmpty());
  EXPECT_EQ(scheduler_->num_waiting(), 1U);
  scheduler_->set_admission(PauseState::kUnpaused);
  EXPECT_EQ(run_to_end().id, 2U);
}

TEST_F(SchedulerTest, PausedAllRunsNothingAndCountsNothing) {
  add(1, request_of(tokens_from(0, 5), 2));
  const StepPlan plan = scheduler_->plan();
  scheduler_->set_admission(PauseState::kPausedAll);
  EXPECT_TRUE(scheduler_->has_unfinished());
  scheduler_->complete(plan, answer(plan, 7));
  EXPECT_FALSE(scheduler_->has_unfinished());
  EXPECT_THAT(scheduler_->plan().sequences, IsEmpty());
  scheduler_->set_admission(PauseState::kUnpaused);
  EXPECT_EQ(run_to_end().finished, FinishReason::kLength);
}

TEST_F(SchedulerTest, SendsTheHistoryOnlyWhenPenaltiesNeedIt) {
  add(1, request_of({1, 2}));
  Request penalised = request_of({3, 4});
  penalised.sampling.frequency_penalty = 0.5F;
  add(2, std::move(penalised));
  step();
  const StepPlan plan = scheduler_->plan();
  EXPECT_THAT(plan.sequences.at(0).history, IsEmpty());
  EXPECT_THAT(plan.sequences.at(1).history, ElementsAre(3, 4, 7));
  EXPECT_EQ(plan.sequences[1].prompt_length, 2U);
}

TEST_F(SchedulerTest, SharesOneCopyOfTheSamplingParameters) {
  add(1, request_of({1}));
  const StepPlan first = scheduler_->plan();
  scheduler_->complete(first, answer(first, 7));
  EXPECT_EQ(first.sequences.at(0).sampling, scheduler_->plan().sequences.at(0).sampling);
}

TEST_F(SchedulerTest, GivesItsBlocksBackWhenDestroyed) {
  add(1, request_of(tokens_from(0, 12)));
  add(2, request_of({1}));
  scheduler_->plan();
  scheduler_->abort(2);
  scheduler_.reset();
  EXPECT_EQ(pool_->used(), 0U);
  EXPECT_TRUE(pool_->consistent());
}

TEST_F(SchedulerTest, StopsOnMisuse) {
  add(1, request_of({1}));
  const StepPlan plan = scheduler_->plan();
  EXPECT_DEATH(scheduler_->plan(), "one step is in flight");
  EXPECT_DEATH(scheduler_->preempt_all(), "still writes");
  EXPECT_DEATH(scheduler_->complete(plan, StepResult{plan.step, {}}), "one token for each");
  scheduler_->complete(plan, answer(plan, 7));
  EXPECT_DEATH(scheduler_->fail_step(plan, Error{}), "not in flight");
}

}  // namespace
}  // namespace dormouse

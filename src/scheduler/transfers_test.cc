#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "scheduler/fake_scheduler_connector.h"
#include "scheduler/scheduler.h"

namespace dormouse {
namespace {

using ::testing::ElementsAre;
using testing::FakeSchedulerConnector;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class TransfersTest : public ::testing::Test {
 protected:
  void SetUp() override { build({}); }

  void build(SchedulerConfig config, std::uint32_t num_blocks = 32) {
    scheduler_.reset();
    config.max_num_seqs = 4;
    config.max_num_batched_tokens = 32;
    config.block_size = 4;
    config.max_model_len = 64;
    pool_ = std::make_unique<BlockPool>(num_blocks);
    scheduler_ = std::make_unique<Scheduler>(config, *pool_, &connector_);
  }

  void add(RequestId id, std::size_t prompt, std::uint32_t max_tokens = 2) {
    Request request;
    request.prompt.resize(prompt);
    std::iota(request.prompt.begin(), request.prompt.end(), static_cast<TokenId>(100 * id));
    request.sampling.max_tokens = max_tokens;
    ASSERT_TRUE(scheduler_->add(id, std::move(request)));
  }

  // Plans one step, keeps it in plan_, and completes it with what the ranks say of the connector.
  std::vector<RequestOutput> step(std::vector<KvConnectorOutput> ranks = {{}}) {
    plan_ = scheduler_->plan();
    if (plan_.sequences.empty() && !plan_.polls_connector)
      return {};
    StepResult result{.step = plan_.step};
    for (const ScheduledSequence& sequence : plan_.sequences)
      if (sequence.samples)
        result.sampled.push_back({sequence.id, {7}});
    result.connector = std::move(ranks);
    return scheduler_->complete(plan_, result);
  }
  std::vector<RequestOutput> poll(KvConnectorOutput output) {
    plan_ = scheduler_->plan_poll();
    return scheduler_->complete(plan_, {.step = plan_.step, .connector = {std::move(output)}});
  }
  // Loads 8 of the 10 tokens of a request.
  void start_load(RequestId id = 1) {
    connector_.available[id] = 8;
    add(id, 10);
    EXPECT_THAT(step(), IsEmpty());
    EXPECT_THAT(plan_.sequences, IsEmpty());
    EXPECT_EQ(scheduler_->transfers().loads, 1U);
  }

  FakeSchedulerConnector connector_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<Scheduler> scheduler_;
  StepPlan plan_;
};

TEST_F(TransfersTest, ARequestWaitsForItsBlocksAndComputesTheRest) {
  start_load();
  EXPECT_EQ(connector_.external[1], 8U);
  EXPECT_THAT(connector_.allocated[1], SizeIs(3));
  EXPECT_THAT(step(), IsEmpty());
  EXPECT_TRUE(plan_.polls_connector) << "a load under way is asked for";
  poll({.finished_recving = {1}});
  step();
  ASSERT_THAT(plan_.sequences, SizeIs(1));
  EXPECT_EQ(plan_.sequences[0].first_position, 8U);
  EXPECT_EQ(plan_.sequences[0].block_table, connector_.allocated[1]);
  EXPECT_EQ(scheduler_->counters().transferred_tokens, 8U);
  EXPECT_EQ(scheduler_->counters().recomputed_tokens, 0U);
  EXPECT_EQ(scheduler_->counters().external_queries, 10U);
  EXPECT_EQ(scheduler_->counters().external_hits, 8U);
  EXPECT_EQ(step().at(0).cached_tokens, 8U);
}

TEST_F(TransfersTest, TheLastTokenIsComputedEvenIfAllWereLoaded) {
  connector_.available[1] = 10;
  add(1, 10);
  step();
  poll({.finished_recving = {1}});
  step();
  ASSERT_THAT(plan_.sequences, SizeIs(1));
  EXPECT_EQ(plan_.sequences[0].first_position, 9U);
  EXPECT_EQ(scheduler_->counters().transferred_tokens, 9U);
}

TEST_F(TransfersTest, WhatAFailedLoadDidNotBringIsComputed) {
  start_load();
  poll({.finished_recving = {1}, .invalid_block_ids = {connector_.allocated[1][1]}});
  step();
  ASSERT_THAT(plan_.sequences, SizeIs(1));
  EXPECT_EQ(plan_.sequences[0].first_position, 4U);
  EXPECT_EQ(scheduler_->counters().transferred_tokens, 4U);
  EXPECT_EQ(scheduler_->counters().recomputed_tokens, 4U);
}

TEST_F(TransfersTest, AFailedLoadIsNeverPublished) {
  start_load();
  poll({.finished_recving = {1}, .invalid_block_ids = {connector_.allocated[1][1]}});
  EXPECT_EQ(pool_->cached(), 1U) << "the block before it alone";
}

TEST_F(TransfersTest, UnderThePolicyFailARequestEndsWithItsLoad) {
  build({.kv_load_failure_policy = KvLoadFailurePolicy::kFail});
  start_load();
  const auto outputs = poll({.finished_recving = {1},
                             .invalid_block_ids = {connector_.allocated[1][0]},
                             .failure = "the lease has expired"});
  ASSERT_THAT(outputs, SizeIs(1));
  EXPECT_EQ(outputs[0].finished, FinishReason::kError);
  EXPECT_EQ(outputs[0].error.code, ErrorCode::kTransferFailed);
  EXPECT_THAT(outputs[0].error.message, HasSubstr("the lease has expired"));
  EXPECT_EQ(pool_->used(), 0U);
}

TEST_F(TransfersTest, ASynchronousLoadRunsAtOnceAndIsComputedAgainIfItFailed) {
  connector_.load_is_async = false;
  connector_.available[1] = 8;
  add(1, 10);
  plan_ = scheduler_->plan();
  ASSERT_THAT(plan_.sequences, SizeIs(1));
  EXPECT_EQ(plan_.sequences[0].first_position, 8U);
  StepResult result{.step = plan_.step, .sampled = {{1, {7}}}};
  result.connector.push_back({.invalid_block_ids = {connector_.allocated[1][1]}});
  EXPECT_THAT(scheduler_->complete(plan_, result), IsEmpty()) << "its token means nothing";
  EXPECT_EQ(pool_->cached(), 0U);
  step();
  ASSERT_THAT(plan_.sequences, SizeIs(1));
  EXPECT_EQ(plan_.sequences[0].first_position, 4U);
}

TEST_F(TransfersTest, ASynchronousLoadThatFailedEndsItsRequestUnderThePolicyFail) {
  build({.kv_load_failure_policy = KvLoadFailurePolicy::kFail});
  connector_.load_is_async = false;
  connector_.available[1] = 8;
  add(1, 10);
  plan_ = scheduler_->plan();
  StepResult result{.step = plan_.step, .sampled = {{1, {7}}}};
  result.connector.push_back({.invalid_block_ids = {connector_.allocated[1][1]}});
  const auto outputs = scheduler_->complete(plan_, result);
  ASSERT_THAT(outputs, SizeIs(1));
  EXPECT_EQ(outputs[0].error.code, ErrorCode::kTransferFailed);
  EXPECT_EQ(pool_->used(), 0U);
}

TEST_F(TransfersTest, ALoadOfSeveralRanksEndsWithTheLast) {
  build({.world_size = 2});
  start_load();
  step({{.finished_recving = {1}}, {}});
  EXPECT_EQ(scheduler_->transfers().loads, 1U);
  step({{}, {.finished_recving = {1}}});
  EXPECT_EQ(scheduler_->transfers().loads, 0U);
}

TEST_F(TransfersTest, AnAbortedRequestKeepsItsBlocksUntilItsLoadHasEnded) {
  start_load();
  ASSERT_TRUE(scheduler_->abort(1));
  EXPECT_EQ(pool_->used(), 3U) << "the connector may still write to them";
  EXPECT_THAT(poll({.finished_recving = {1}}), IsEmpty());
  EXPECT_EQ(pool_->used(), 0U);
}

TEST_F(TransfersTest, BlocksAreHeldAfterTheEndUntilTheyAreSent) {
  connector_.keep = {1};
  add(1, 10, 1);
  const auto outputs = step();
  ASSERT_THAT(outputs, SizeIs(1));
  EXPECT_EQ(outputs[0].kv_transfer_params, "{\"token\":1}");
  EXPECT_EQ(pool_->used(), 3U);
  EXPECT_EQ(scheduler_->transfers().sends, 1U);
  EXPECT_FALSE(scheduler_->has_unfinished());
  poll({.finished_sending = {1}});
  EXPECT_EQ(pool_->used(), 0U);
}

TEST_F(TransfersTest, ReportsThatComeLateTwiceOrOfNobodyAreHarmless) {
  connector_.keep = {1};
  add(1, 10, 1);
  step();
  poll({.finished_sending = {1, 2}, .finished_recving = {1, 3}});
  poll({.finished_sending = {1}, .finished_recving = {1}, .invalid_block_ids = {5}});
  EXPECT_EQ(pool_->used(), 0U);
  EXPECT_TRUE(pool_->consistent());
}

TEST_F(TransfersTest, ABlockOfALoadThatIsOverIsNotInvalidForItsNextHolder) {
  build({.kv_load_failure_policy = KvLoadFailurePolicy::kFail});
  add(2, 10, 3);
  ASSERT_THAT(step(), SizeIs(1));
  plan_ = scheduler_->plan();
  ASSERT_EQ(plan_.sequences.at(0).first_position, 10U);
  StepResult result{.step = plan_.step, .sampled = {{2, {7}}}};
  result.connector.push_back({.invalid_block_ids = plan_.sequences[0].block_table});
  const auto outputs = scheduler_->complete(plan_, result);
  ASSERT_THAT(outputs, SizeIs(1));
  EXPECT_FALSE(outputs[0].finished) << outputs[0].error.message;
  EXPECT_EQ(scheduler_->counters().recomputed_tokens, 0U);
}

TEST_F(TransfersTest, EveryRequestIsFinishedOnceWhateverEndedIt) {
  add(1, 5, 1);
  step();
  add(2, 5);
  scheduler_->abort(2);
  start_load(3);
  EXPECT_THAT(plan_.finished, ElementsAre(1, 2)) << "the ranks are told once";
  scheduler_->abort(3);
  std::vector<RequestId> ids;
  for (const auto& ended : connector_.ended)
    ids.push_back(ended.id);
  EXPECT_THAT(ids, ElementsAre(1, 2, 3));
  EXPECT_EQ(connector_.ended[0].computed, 5U);
  EXPECT_EQ(connector_.ended[1].blocks, 0U) << "it was never admitted";
  plan_ = scheduler_->plan_poll();
  EXPECT_THAT(plan_.finished, ElementsAre(3));
}

TEST_F(TransfersTest, ARequestThatTheConnectorWantsToThinkAboutHoldsNobodyUp) {
  connector_.ask_later = {1};
  add(1, 10);
  add(2, 5);
  step();
  ASSERT_THAT(plan_.sequences, SizeIs(1));
  EXPECT_EQ(plan_.sequences[0].id, 2U);
  EXPECT_EQ(scheduler_->transfers().lookups, 1U);
  scheduler_->set_admission(PauseState::kPausedAll);
  EXPECT_EQ(scheduler_->transfers().lookups, 0U) << "nobody waits for the answer now";
  scheduler_->set_admission(PauseState::kUnpaused);
  connector_.ask_later.clear();
  step();
  EXPECT_EQ(plan_.sequences.back().id, 1U);
  EXPECT_EQ(scheduler_->transfers().lookups, 0U);
}

TEST_F(TransfersTest, NobodyWaitsForTheAnswerToARequestThatIsGone) {
  connector_.ask_later = {1};
  add(1, 10);
  step();
  scheduler_->abort(1);
  EXPECT_EQ(scheduler_->transfers().lookups, 0U);
}

TEST_F(TransfersTest, AConnectorIsAskedOnceInARequestsLife) {
  start_load();
  poll({.finished_recving = {1}});
  step();
  scheduler_->preempt_all();
  pool_->forget_all();
  step();
  EXPECT_EQ(plan_.sequences.at(0).first_position, 0U);
  EXPECT_EQ(connector_.external[1], 8U);
}

TEST_F(TransfersTest, ALoadedRequestRunsAlthoughOneAheadLacksRoom) {
  build({}, 6);
  connector_.available[1] = 8;
  add(1, 10, 1);
  step();
  connector_.available[2] = 8;
  Request urgent;  // needs four blocks, three are free
  urgent.prompt.resize(14, 5);
  urgent.sampling.max_tokens = 1;
  urgent.priority = -1;
  ASSERT_TRUE(scheduler_->add(2, std::move(urgent)));
  poll({.finished_recving = {1}});
  step();
  ASSERT_THAT(plan_.sequences, SizeIs(1));
  EXPECT_EQ(plan_.sequences[0].id, 1U);
}

TEST_F(TransfersTest, AfterAnUnmapNothingIsHeldAndLoadsAreComputed) {
  connector_.keep = {1};
  add(1, 10, 1);
  step();
  start_load(2);
  scheduler_->preempt_all();
  scheduler_->drop_transfers();
  EXPECT_EQ(pool_->used(), 0U);
  pool_->forget_all();
  poll({.finished_sending = {1}, .finished_recving = {2}});
  step();
  ASSERT_THAT(plan_.sequences, SizeIs(1));
  EXPECT_EQ(plan_.sequences[0].first_position, 0U);
  EXPECT_EQ(scheduler_->counters().recomputed_tokens, 8U);
}

TEST_F(TransfersTest, AnUnmapTakesAlsoWhatALoadBroughtMeanwhile) {
  start_load();
  scheduler_->preempt_all();
  poll({.finished_recving = {1}});
  scheduler_->drop_transfers();
  EXPECT_EQ(pool_->used(), 0U);
  pool_->forget_all();
  EXPECT_EQ(step().at(0).cached_tokens, 0U);
  ASSERT_THAT(plan_.sequences, SizeIs(1));
  EXPECT_EQ(plan_.sequences[0].first_position, 0U);
  EXPECT_EQ(scheduler_->counters().transferred_tokens, 0U);
  EXPECT_EQ(scheduler_->counters().recomputed_tokens, 8U);
}

TEST_F(TransfersTest, APreemptionGivesBackTheBlocksOfALoadThatHasEnded) {
  start_load();
  poll({.finished_recving = {1}});
  EXPECT_EQ(pool_->used(), 3U);
  scheduler_->preempt_all();
  EXPECT_EQ(pool_->used(), 0U);
}

TEST_F(TransfersTest, APauseOfNewRequestsWaitsForLoadsUnderWay) {
  start_load();
  scheduler_->set_admission(PauseState::kPausedNew);
  EXPECT_TRUE(scheduler_->has_unfinished());
  poll({.finished_recving = {1}});
  step();
  EXPECT_THAT(plan_.sequences, SizeIs(1));
}

TEST_F(TransfersTest, MetadataGoesWithTheNextStepOrAPoll) {
  add(1, 5);
  step();
  EXPECT_EQ(plan_.connector_meta, "meta 1");
  EXPECT_FALSE(plan_.polls_connector);
  connector_.pending = true;
  EXPECT_TRUE(scheduler_->connector_waits());
  plan_ = scheduler_->plan_poll();
  EXPECT_EQ(plan_.connector_meta, "meta 2");
  EXPECT_FALSE(scheduler_->connector_waits());
}

}  // namespace
}  // namespace dormouse

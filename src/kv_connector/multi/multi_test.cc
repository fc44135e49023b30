#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv_connector/multi/multi_config.h"
#include "kv_connector/multi/multi_connector.h"
#include "kv_connector/multi/multi_fixture.h"
#include "kv_connector/registry.h"

namespace dormouse {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST_F(MultiTest, LoadsFromTheFirstChildThatHasSomething) {
  const TestRequest request = request_of(1, 9);
  scheduler_[1]->match = KvMatch{.tokens = 4, .load_is_async = true};
  scheduler_[2]->match = KvMatch{.tokens = 8};
  EXPECT_EQ(engine_->load(request, {1, 2, 3}), 4U);
  EXPECT_THAT(journal_, ElementsAre("a loads 0", "b loads 4", "c loads 0"));
  journal_.clear();
  scheduler_[1]->match = KvMatch{};
  EXPECT_FALSE(engine_->scheduler->get_num_new_matched_tokens(request.view(), 0)->load_is_async);
  EXPECT_EQ(engine_->load(request, {1, 2, 3}), 8U);
  EXPECT_THAT(journal_, ElementsAre("a loads 0", "b loads 0", "c loads 8"));
  journal_.clear();
  scheduler_[2]->match = KvMatch{};
  EXPECT_EQ(engine_->load(request, {1, 2, 3}), 0U);
  EXPECT_THAT(journal_, ElementsAre("a loads 0", "b loads 0", "c loads 0"));
}

TEST_F(MultiTest, AsksAgainLaterIfAnyChildSaysSo) {
  scheduler_[0]->match = KvMatch{.tokens = 4};
  scheduler_[2]->match = std::nullopt;
  EXPECT_FALSE(engine_->scheduler->get_num_new_matched_tokens(request_of(1, 9).view(), 0));
}

TEST_F(MultiTest, KeepsApartWhatEachChildSays) {
  scheduler_[0]->metadata = "down a";
  scheduler_[2]->metadata = std::string("down\0c", 6);
  worker_[1]->next.worker_meta = "up b";
  worker_[2]->next.worker_meta = std::string("\xFF\0up", 4);
  worker_[2]->next.finished_recving = {7};
  engine_->step();
  EXPECT_EQ(worker_[0]->metadata, "down a");
  EXPECT_EQ(worker_[1]->metadata, "");
  EXPECT_EQ(worker_[2]->metadata, std::string("down\0c", 6));
  EXPECT_EQ(scheduler_[0]->heard.worker_meta, "");
  EXPECT_EQ(scheduler_[1]->heard.worker_meta, "up b");
  EXPECT_EQ(scheduler_[2]->heard.worker_meta, std::string("\xFF\0up", 4));
  EXPECT_THAT(scheduler_[1]->heard.finished_recving, IsEmpty());
  EXPECT_THAT(scheduler_[2]->heard.finished_recving, ElementsAre(7));
  engine_->step();
  EXPECT_EQ(worker_[0]->metadata, "");
  EXPECT_EQ(engine_->scheduler->build_connector_meta(), "");
}

TEST_F(MultiTest, KeepsTheHandshakeOfEachChildApart) {
  EXPECT_EQ(engine_->worker->get_handshake_metadata(), "");
  worker_[0]->handshake = "hello a";
  worker_[2]->handshake = "hello c";
  const std::string rank = engine_->worker->get_handshake_metadata();
  engine_->scheduler->set_xfer_handshake_metadata({rank, "", rank});
  EXPECT_THAT(scheduler_[0]->handshake, ElementsAre("hello a", "", "hello a"));
  EXPECT_THAT(scheduler_[1]->handshake, ElementsAre("", "", ""));
  EXPECT_THAT(scheduler_[2]->handshake, ElementsAre("hello c", "", "hello c"));
  engine_->scheduler->set_xfer_handshake_metadata({});
  EXPECT_THAT(scheduler_[2]->handshake, IsEmpty());
}

TEST_F(MultiTest, UnitesWhatTheChildrenReport) {
  worker_[0]->next.invalid_block_ids = {3};
  worker_[1]->next.invalid_block_ids = {4, 5};
  worker_[1]->next.failure = "b failed";
  worker_[2]->next.failure = "c failed";
  worker_[1]->next.finished_recving = {8};
  const KvConnectorOutput output = engine_->step();
  EXPECT_THAT(output.invalid_block_ids, ElementsAre(3, 4, 5));
  EXPECT_EQ(output.failure, "b failed");
  EXPECT_THAT(output.finished_recving, ElementsAre(8));
}

TEST_F(MultiTest, ReportsBlocksAsSentOnceEveryChildThatHoldsThemHas) {
  TestRequest request = request_of(1, 9);
  scheduler_[0]->at_finish.delay_free = true;
  scheduler_[2]->at_finish.delay_free = true;
  EXPECT_TRUE(engine_->finish(request, {1, 2, 3}).delay_free);
  EXPECT_TRUE(engine_->scheduler->has_pending_work());
  worker_[2]->next.finished_sending = {1};
  EXPECT_THAT(engine_->step().finished_sending, IsEmpty());
  EXPECT_THAT(engine_->step().finished_sending, IsEmpty());
  worker_[0]->next.finished_sending = {1};
  EXPECT_THAT(engine_->step().finished_sending, ElementsAre(1));

  TestRequest alone = request_of(2, 9);
  scheduler_[0]->at_finish.delay_free = false;
  EXPECT_TRUE(engine_->finish(alone, {1, 2, 3}).delay_free);
  worker_[2]->next.finished_sending = {2};
  EXPECT_THAT(engine_->step().finished_sending, ElementsAre(2));
}

TEST_F(MultiTest, MergesParamsAndTheFirstOfTwoWins) {
  TestRequest request = request_of(1, 9);
  scheduler_[0]->at_finish.kv_transfer_params = R"({"x":1})";
  scheduler_[2]->at_finish.kv_transfer_params = R"({"y":[2]})";
  EXPECT_EQ(engine_->finish(request, {1, 2, 3}).kv_transfer_params, R"({"x":1,"y":[2]})");
  EXPECT_EQ(engine_->stat("kv_multi_key_clashes_total"), 0);
  scheduler_[1]->at_finish.kv_transfer_params = R"({"z":0,"x":5})";
  EXPECT_EQ(engine_->finish(request, {1, 2, 3}).kv_transfer_params, R"({"x":1,"z":0,"y":[2]})");
  EXPECT_EQ(engine_->stat("kv_multi_key_clashes_total"), 1);
  EXPECT_FALSE(engine_->finish(request, {1, 2, 3}).delay_free);
}

TEST_F(MultiTest, ForwardsEveryHookToEveryChild) {
  engine_->step(true);
  EXPECT_THAT(journal_, ElementsAre("a start", "b start", "c start",     //
                                    "a load 0", "b load 0", "c load 0",  //
                                    "a save 0", "b save 0", "c save 0",  //
                                    "a load 1", "b load 1", "c load 1",  //
                                    "a save 1", "b save 1", "c save 1",  //
                                    "a saved", "b saved", "c saved"));
  journal_.clear();
  engine_->scheduler->set_model_hash("m");
  EXPECT_THAT(journal_, ElementsAre("a model m", "b model m", "c model m"));
  journal_.clear();
  scheduler_[0]->refuse = true;
  EXPECT_FALSE(engine_->scheduler->reset_cache());
  EXPECT_THAT(journal_, ElementsAre("a reset", "b reset", "c reset"));
  scheduler_[0]->refuse = false;
  EXPECT_TRUE(engine_->scheduler->reset_cache());
  journal_.clear();
  engine_->worker->shutdown();
  EXPECT_THAT(journal_, ElementsAre("a shutdown", "b shutdown", "c shutdown"));
  EXPECT_EQ(engine_->stat("same"), 12);
}

TEST_F(MultiTest, ChecksARequestWithEveryChild) {
  EXPECT_TRUE(engine_->scheduler->check_request({}));
  EXPECT_THAT(journal_, ElementsAre("a check", "b check", "c check"));
  scheduler_[2]->refuse = true;
  EXPECT_EQ(engine_->scheduler->check_request({}).error().message, "c");
}

TEST_F(MultiTest, ReleasesAndRestoresInOrder) {
  Unmapping unmapping;
  EXPECT_TRUE(engine_->follower().release_kv_caches(unmapping));
  EXPECT_TRUE(engine_->follower().restore_kv_caches(engine_->caches()));
  EXPECT_THAT(journal_, ElementsAre("a release", "b release", "c release", "a restore", "b restore",
                                    "c restore"));
}

TEST_F(MultiTest, AFailedReleaseRestoresThoseThatHadReleasedInReverse) {
  worker_[2]->refuse = true;
  worker_[1]->refuse_restore = true;
  Unmapping unmapping;
  const Status released = engine_->follower().release_kv_caches(unmapping);
  ASSERT_FALSE(released);
  EXPECT_EQ(released.error().message, "c cannot release");
  EXPECT_THAT(journal_,
              ElementsAre("a release", "b release", "c release", "b restore", "a restore"));
}

TEST_F(MultiTest, AFailedRestoreKeepsTheFirstErrorAndFinishesTheRest) {
  worker_[0]->refuse_restore = worker_[1]->refuse_restore = true;
  const Status restored = engine_->follower().restore_kv_caches(engine_->caches());
  EXPECT_EQ(restored.error().message, "a cannot restore");
  EXPECT_THAT(journal_, ElementsAre("a restore", "b restore", "c restore"));
}

TEST(Multi, DoesNotCallAChildThatDoesNotFollow) {
  Journal journal;
  MultiWorker::Children children;
  children.push_back(std::make_unique<LegacyWorker>("legacy", journal));
  children.push_back(std::make_unique<ChildWorker>("a", journal));
  MultiWorker worker(std::move(children));
  Unmapping unmapping;
  EXPECT_TRUE(worker.release_kv_caches(unmapping));
  EXPECT_THAT(journal, ElementsAre("a release"));
}

KvTransferConfig config_of(const std::string& connectors) {
  KvTransferConfig config{.kv_connector = "MultiConnector", .engine_id = "whole"};
  config.kv_role = KvRole::kProducer;
  config.kv_port = 5600;
  config.verify_kv = true;
  config.kv_load_failure_policy = KvLoadFailurePolicy::kFail;
  config.kv_connector_extra_config = R"({"connectors":)" + connectors + "}";
  return config;
}

TEST(Multi, AChildInheritsWhatItDoesNotSay) {
  const auto children = multi_children(
      config_of(R"([{"kv_connector":"OffloadingConnector"},{"kv_connector":"ExampleConnector",)"
                R"("engine_id":"own","kv_role":"kv_both","kv_port":7,"verify_kv":false,)"
                R"("kv_connector_extra_config":{"k":1}}])"));
  ASSERT_TRUE(children) << children.error().message;
  ASSERT_EQ(children->size(), 2U);
  const KvTransferConfig& first = (*children)[0].config;
  EXPECT_EQ(first.engine_id, "whole");
  EXPECT_EQ(first.kv_role, KvRole::kProducer);
  EXPECT_EQ(first.kv_port, 5600);
  EXPECT_TRUE(first.verify_kv);
  EXPECT_EQ(first.kv_load_failure_policy, KvLoadFailurePolicy::kFail);
  EXPECT_EQ(first.kv_connector_extra_config, "{}");
  const KvTransferConfig& second = (*children)[1].config;
  EXPECT_EQ(second.engine_id, "own");
  EXPECT_EQ(second.kv_role, KvRole::kBoth);
  EXPECT_EQ(second.kv_port, 7);
  EXPECT_FALSE(second.verify_kv);
  EXPECT_EQ(second.kv_load_failure_policy, KvLoadFailurePolicy::kFail) << "the engine's";
  EXPECT_EQ(second.kv_connector_extra_config, R"({"k":1})");
}

TEST(Multi, RefusesEveryWrongConfiguration) {
  const auto refusal = [](const std::string& connectors) {
    const auto children = multi_children(config_of(connectors));
    return children ? "accepted" : children.error().message;
  };
  EXPECT_THAT(refusal("[]"), HasSubstr("at least one"));
  EXPECT_THAT(refusal("{}"), HasSubstr("a list"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(refusal(R"([{"kv_connector":"IpcConnector","kv_load_failure_policy":"fail"}])"),
              HasSubstr("kv_load_failure_policy is the engine's"));
  EXPECT_THAT(refusal(R"([{"kv_connector":"MultiConnector"}])"), HasSubstr("another one"));
  EXPECT_THAT(refusal(R"([{"kv_connector":"Nothing"}])"),
              HasSubstr("Unsupported connector type: Nothing"));
  EXPECT_THAT(refusal(R"([], "more":1)"), HasSubstr("at least one"));
  EXPECT_THAT(refusal(R"([{"kv_connector":"OffloadingConnector"}], "more":1)"),
              HasSubstr("more is unknown; known are connectors"));
}

TEST(Multi, FollowsExactlyIfEveryChildDoes) {
  const std::string good = R"({"kv_connector":"OffloadingConnector"})";
  EXPECT_TRUE(multi_connector_class().follows_mapping(config_of("[" + good + "," + good + "]")));
  const std::string legacy =
      R"({"kv_connector":"LegacyConnector","kv_connector_module_path":")" DM_LEGACY_MODULE "\"}";
  for (const std::string& list :
       {"[" + good + "," + legacy + "]", "[" + legacy + "," + good + "]", "[" + legacy + "]",
        std::string("[]"), std::string(R"([{"kv_connector":"Nothing"}])")})
    EXPECT_FALSE(multi_connector_class().follows_mapping(config_of(list))) << list;
  EXPECT_TRUE(multi_children(config_of("[" + good + "," + legacy + "]")))
      << "it exists, and does not follow";
}

TEST(Multi, GivesEachChildItsOwnConfiguration) {
  const ScratchFolder folder;
  KvConnectorContext context = context_of("");
  context.config = config_of(R"([{"kv_connector":"OffloadingConnector"},)"
                             R"({"kv_connector":"ExampleConnector","kv_connector_extra_config":)"
                             R"({"shared_storage_path":")" +
                             folder.path() + "\"}}]");
  const KvConnectorClass connector = multi_connector_class();
  OneRankEngine engine(context, *connector.make_scheduler(context),
                       *connector.make_worker(context));
  TestRequest request = request_of(1, 9);
  engine.fill(1, 1);
  engine.fill(2, 2);
  EXPECT_TRUE(engine.finish(request, {1, 2, 3}).delay_free);
  EXPECT_THAT(engine.poll().finished_sending, ElementsAre(1));
  engine.settle();
  EXPECT_THAT(engine.worker->get_kv_connector_stats(),
              Contains(Pair("kv_offload_stored_blocks_total", 2)));
  // The files are there for an engine that has the second child alone.
  EXPECT_TRUE(engine.scheduler->reset_cache());
  const TestRequest again = request_of(2, 9);
  const auto match = engine.scheduler->get_num_new_matched_tokens(again.view(), 0);
  EXPECT_EQ(match->tokens, 8U);
  EXPECT_FALSE(match->load_is_async) << "the files', not the host tier's";
  engine.scheduler->update_state_after_alloc(again.view(), std::vector<BlockId>{5, 6, 7}, 8);
  engine.step(true);
  EXPECT_TRUE(engine.holds(5, 1) && engine.holds(6, 2));

  context.config = config_of(R"([{"kv_connector":"ExampleConnector"}])");
  EXPECT_FALSE(connector.make_scheduler(context));
  EXPECT_FALSE(connector.make_worker(context));
}

}  // namespace
}  // namespace dormouse

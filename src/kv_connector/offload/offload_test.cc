#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "kv_connector/offload/offload_fixture.h"
#include "kv_connector/offload/offloading_connector.h"

namespace dormouse {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Stores a request of two blocks, computed in blocks 1 and 2.
void store_two(OffloadEngine& engine, RequestId id = 1, TokenId first = 100) {
  TestRequest request = request_of(id, 9, first);
  engine.fill(1, static_cast<int>(id));
  engine.fill(2, static_cast<int>(id) + 1);
  ASSERT_TRUE(engine.finish(request, {1, 2, 3}).delay_free);
  EXPECT_THAT(engine.poll().finished_sending, ElementsAre(id));
  engine.settle();
}

TEST(Offload, BringsBackTheBytesOfAnEarlierRequest) {
  OffloadEngine engine(context_of("{}"));
  store_two(engine);
  const TestRequest again = request_of(2, 9);
  EXPECT_EQ(engine.load(again, {5, 6, 7}), 8U);
  const KvConnectorOutput output = engine.poll();
  EXPECT_THAT(output.finished_recving, ElementsAre(2));
  EXPECT_THAT(output.invalid_block_ids, IsEmpty());
  EXPECT_TRUE(engine.holds(5, 1));
  EXPECT_TRUE(engine.holds(6, 2));
  EXPECT_EQ(engine.stat("kv_offload_stored_blocks_total"), 2);
  EXPECT_EQ(engine.stat("kv_offload_loaded_blocks_total"), 2);
  EXPECT_EQ(engine.stat("kv_offload_host_bytes"),
            2.0 * static_cast<double>(engine.shape.block_bytes()));
}

TEST(Offload, ALookupChangesNothingAndStartsAfterWhatIsComputed) {
  OffloadEngine engine(context_of("{}"));
  store_two(engine);
  const TestRequest again = request_of(2, 9);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(engine.matched(again), 8U);
  EXPECT_FALSE(engine.scheduler->has_pending_work());
  EXPECT_EQ(engine.scheduler->build_connector_meta(), "");
  const auto rest = engine.scheduler->get_num_new_matched_tokens(again.view(), 4);
  EXPECT_EQ(rest->tokens, 4U);
  EXPECT_TRUE(rest->load_is_async);
  EXPECT_FALSE(engine.scheduler->get_num_new_matched_tokens(again.view(), 8)->load_is_async);
  EXPECT_EQ(engine.matched(request_of(3, 9, 101)), 0U) << "other tokens";
  EXPECT_EQ(engine.matched(request_of(4, 6)), 4U) << "full blocks alone";
}

TEST(Offload, KeepsSaltsAndModelsApart) {
  OffloadEngine engine(context_of("{}"));
  store_two(engine);
  TestRequest salted = request_of(2, 9);
  salted.salt = "somebody";
  EXPECT_EQ(engine.matched(salted), 0U);
  engine.scheduler->set_model_hash("other weights");
  EXPECT_EQ(engine.matched(request_of(3, 9)), 0U);
  engine.scheduler->set_model_hash("model");
  EXPECT_EQ(engine.matched(request_of(4, 9)), 8U);
}

TEST(Offload, StoresABlockOnce) {
  OffloadEngine engine(context_of("{}"));
  store_two(engine);
  TestRequest again = request_of(2, 9);
  EXPECT_FALSE(engine.finish(again, {4, 5, 6}).delay_free);
  TestRequest longer = request_of(3, 13);
  EXPECT_TRUE(engine.finish(longer, {4, 5, 6, 7}).delay_free);
  engine.settle();
  EXPECT_EQ(engine.stat("kv_offload_stored_blocks_total"), 3);
}

TEST(Offload, StoresNothingThatMayBeWrong) {
  OffloadEngine engine(context_of("{}"));
  TestRequest failed = request_of(1, 9);
  EXPECT_FALSE(engine.finish(failed, {1, 2, 3}, FinishReason::kError).delay_free);

  TestRequest spanning = request_of(2, 9);
  engine.load(spanning, {1, 2, 3});
  engine.scheduler->set_model_hash("other weights");
  spanning.num_computed = 9;
  EXPECT_FALSE(engine.scheduler->request_finished(spanning.view(), std::vector<BlockId>{1, 2, 3})
                   .delay_free);

  TestRequest short_one = request_of(3, 3);
  EXPECT_FALSE(engine.finish(short_one, {1}).delay_free);
  TestRequest never_admitted = request_of(4, 9);
  engine.scheduler->on_new_request(never_admitted.view());
  EXPECT_FALSE(engine.scheduler->request_finished(never_admitted.view(), {}).delay_free);
  EXPECT_FALSE(engine.scheduler->has_pending_work());
}

TEST(Offload, StoresNothingWhileItsOwnLoadIsUnderWay) {
  OffloadEngine engine(context_of("{}"));
  store_two(engine);
  TestRequest longer = request_of(2, 13);
  engine.close();
  EXPECT_EQ(engine.load(longer, {5, 6, 7, 8}), 8U);
  engine.step();
  longer.num_computed = 13;
  longer.finished = FinishReason::kAbort;
  EXPECT_FALSE(engine.scheduler->request_finished(longer.view(), std::vector<BlockId>{5, 6, 7, 8})
                   .delay_free);
  engine.open();
  EXPECT_THAT(engine.poll().finished_recving, ElementsAre(2)) << "the load still ends";
}

TEST(Offload, KeepsThePrefixWhenThereIsNoRoom) {
  const std::size_t block = small_shape().block_bytes();
  OffloadEngine engine(context_of(R"({"cpu_bytes_to_use":)" + std::to_string(3 * block) + "}"));
  TestRequest longer = request_of(1, 20);
  EXPECT_TRUE(engine.finish(longer, {1, 2, 3, 4, 5}).delay_free);
  engine.settle();
  EXPECT_EQ(engine.matched(request_of(2, 20)), 12U);
  TestRequest other = request_of(3, 4, 500);
  EXPECT_TRUE(engine.finish(other, {6}).delay_free);
  engine.settle();
  EXPECT_EQ(engine.matched(request_of(4, 20)), 8U) << "the end goes first";
  EXPECT_EQ(engine.matched(request_of(5, 4, 500)), 4U);
  EXPECT_EQ(engine.stat("kv_offload_evictions_total"), 1);
}

TEST(Offload, NeverDisplacesABlockThatIsBeingLoaded) {
  const std::size_t block = small_shape().block_bytes();
  OffloadEngine engine(context_of(R"({"cpu_bytes_to_use":)" + std::to_string(2 * block) + "}"));
  store_two(engine);
  engine.close();
  EXPECT_EQ(engine.load(request_of(2, 9), {5, 6, 7}), 8U);
  TestRequest other = request_of(3, 9, 500);
  EXPECT_FALSE(engine.finish(other, {8, 9, 10}).delay_free);
  engine.open();
  engine.settle();
  EXPECT_TRUE(engine.holds(5, 1));
  EXPECT_TRUE(engine.holds(6, 2));
}

TEST(Offload, ForgetsOnResetEvenWhatIsOnItsWay) {
  OffloadEngine engine(context_of("{}"));
  store_two(engine);
  engine.close();
  TestRequest late = request_of(2, 9, 500);
  EXPECT_TRUE(engine.finish(late, {3, 4, 5}).delay_free);
  engine.step();
  EXPECT_TRUE(engine.scheduler->reset_cache());
  engine.open();
  EXPECT_THAT(engine.poll().finished_sending, ElementsAre(2));
  engine.settle();
  EXPECT_EQ(engine.matched(request_of(3, 9)), 0U);
  EXPECT_EQ(engine.matched(request_of(4, 9, 500)), 0U);
  store_two(engine, 5);
}

TEST(Offload, NoticesAChangedBlockInHostMemory) {
  KvConnectorContext context = context_of("{}");
  context.config.verify_kv = true;
  OffloadEngine engine(context);
  store_two(engine);
  engine.last_to()[7] ^= std::byte{4};
  EXPECT_EQ(engine.load(request_of(2, 9), {5, 6, 7}), 8U);
  const KvConnectorOutput output = engine.poll();
  EXPECT_THAT(output.invalid_block_ids, ElementsAre(6));
  EXPECT_THAT(output.failure, HasSubstr("not what was stored"));
  engine.settle();
  EXPECT_EQ(engine.matched(request_of(3, 9)), 4U);
}

TEST(Offload, RefusesEveryWrongConfigurationByName) {
  const auto refusal = [](const std::string& extra) {
    const auto made = OffloadWorker::create(context_of(extra));
    return made ? "accepted" : made.error().param + ": " + made.error().message;
  };
  EXPECT_THAT(refusal(R"({"cpu_bytes":1})"),
              HasSubstr("cpu_bytes is unknown; known are cpu_bytes_to_use, disk_path"));
  EXPECT_THAT(refusal(R"({"cpu_bytes_to_use":-1})"), HasSubstr("cpu_bytes_to_use must be"));
  EXPECT_THAT(refusal(R"({"cpu_bytes_to_use":"1"})"), HasSubstr("cpu_bytes_to_use must be"));
  EXPECT_THAT(refusal(R"({"cpu_bytes_to_use":255})"), HasSubstr("one block of the KV cache"));
  EXPECT_THAT(refusal(R"({"num_threads":0})"), HasSubstr("num_threads must be"));
  EXPECT_THAT(refusal(R"({"disk_path":"x","disk_bytes":-1})"), HasSubstr("disk_bytes must be"));
  EXPECT_THAT(refusal(R"({"disk_bytes":1000})"), HasSubstr("without disk_path"));
  EXPECT_THAT(refusal(R"({"disk_path":"/proc/none"})"), HasSubstr("disk_path: "));
  EXPECT_THAT(refusal(R"({"disk_path":"/dev/null"})"), HasSubstr("disk_path: "));
  EXPECT_EQ(refusal(R"({"cpu_bytes_to_use":256,"num_threads":2})"), "accepted");
}

TEST(Offload, FollowsTheMapping) {
  EXPECT_TRUE(offloading_connector_class().follows_mapping({}));
  EXPECT_EQ(offloading_connector_class().name, "OffloadingConnector");
}

}  // namespace
}  // namespace dormouse

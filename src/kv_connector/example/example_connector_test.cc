#include "kv_connector/example/example_connector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "kv_connector/connector_fixture.h"
#include "testing/corrupt.h"

namespace dormouse {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ExampleConnectorTest : public ::testing::Test {
 protected:
  std::unique_ptr<OneRankEngine> start(const std::string& model_hash = "model") {
    KvConnectorContext context = context_of(R"({"shared_storage_path":")" + folder_.path() + "\"}");
    context.model_hash = model_hash;
    const KvConnectorClass connector = example_connector_class();
    return std::make_unique<OneRankEngine>(context, *connector.make_scheduler(context),
                                           *connector.make_worker(context));
  }
  // A prompt of two blocks, saved.
  void save(OneRankEngine& engine) {
    TestRequest request = request_of(1, 9);
    engine.fill(1, 1);
    engine.fill(2, 2);
    ASSERT_TRUE(engine.finish(request, {1, 2, 3}).delay_free);
    EXPECT_TRUE(engine.scheduler->has_pending_work());
    EXPECT_THAT(engine.step().finished_sending, ElementsAre(1));
    EXPECT_FALSE(engine.scheduler->has_pending_work());
  }
  std::vector<std::string> files() const {
    std::vector<std::string> found;
    for (const auto& each : std::filesystem::recursive_directory_iterator(folder_.path()))
      if (each.is_regular_file())
        found.push_back(each.path().string());
    return found;
  }

  ScratchFolder folder_;
};

TEST_F(ExampleConnectorTest, AnotherEngineLoadsThePrompt) {
  save(*start());
  EXPECT_EQ(files().size(), 2U);
  const auto reader = start();
  const TestRequest again = request_of(2, 9);
  EXPECT_FALSE(reader->scheduler->get_num_new_matched_tokens(again.view(), 0)->load_is_async);
  EXPECT_EQ(reader->load(again, {5, 6, 7}), 8U);
  EXPECT_THAT(reader->step(true).invalid_block_ids, IsEmpty());
  EXPECT_TRUE(reader->holds(5, 1));
  EXPECT_TRUE(reader->holds(6, 2));
}

TEST_F(ExampleConnectorTest, LoadsEachLayerWhenItIsWaitedFor) {
  save(*start());
  const auto reader = start();
  reader->load(request_of(2, 9), {5, 6, 7});
  WorkerConnector& worker = *reader->worker;
  worker.bind_connector_metadata(reader->scheduler->build_connector_meta());
  worker.start_load_kv();
  const std::size_t layer = 2 * reader->shape.plane_bytes();
  const auto loaded = [&](std::size_t at) {
    return !std::ranges::all_of(reader->block(5).subspan(at * layer, layer),
                                [](std::byte each) { return each == std::byte{0}; });
  };
  EXPECT_FALSE(loaded(0));
  worker.wait_for_layer_load(0);
  EXPECT_TRUE(loaded(0));
  EXPECT_FALSE(loaded(1));
  worker.wait_for_layer_load(1);
  EXPECT_TRUE(reader->holds(5, 1));
}

TEST_F(ExampleConnectorTest, KeepsSaltsAndModelsApart) {
  save(*start());
  const auto reader = start();
  TestRequest salted = request_of(2, 9);
  salted.salt = "somebody";
  EXPECT_EQ(reader->matched(salted), 0U);
  EXPECT_EQ(reader->matched(request_of(3, 9, 101)), 0U);
  EXPECT_EQ(start("other weights")->matched(request_of(4, 9)), 0U);
  reader->scheduler->set_model_hash("other weights");
  EXPECT_EQ(reader->matched(request_of(5, 9)), 0U);
}

TEST_F(ExampleConnectorTest, ADamagedFileIsAFailedLoad) {
  save(*start());
  for (const std::string& each : files())
    testing::flip_bit(each, 200);
  const auto reader = start();
  reader->load(request_of(2, 9), {5, 6, 7});
  const KvConnectorOutput output = reader->step(true);
  EXPECT_THAT(output.invalid_block_ids, ElementsAre(5, 6));
  EXPECT_NE(output.failure, "");
  EXPECT_TRUE(std::ranges::all_of(reader->cache, [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(reader->matched(request_of(3, 9)), 0U);
}

TEST_F(ExampleConnectorTest, SavesNothingThatMayBeWrong) {
  const auto engine = start();
  TestRequest failed = request_of(1, 9);
  EXPECT_FALSE(engine->finish(failed, {1, 2, 3}, FinishReason::kError).delay_free);
  TestRequest spanning = request_of(2, 9);
  engine->load(spanning, {1, 2, 3});
  engine->scheduler->set_model_hash("other weights");
  spanning.num_computed = 9;
  EXPECT_FALSE(engine->scheduler->request_finished(spanning.view(), std::vector<BlockId>{1, 2, 3})
                   .delay_free);
}

// Between the end of the request and the next step: its blocks are gone.
TEST_F(ExampleConnectorTest, ASleepDropsWhatIsStillToBeSaved) {
  const auto engine = start();
  TestRequest request = request_of(1, 9);
  ASSERT_TRUE(engine->finish(request, {1, 2, 3}).delay_free);
  Unmapping unmapping;
  EXPECT_TRUE(engine->follower().release_kv_caches(unmapping));
  ++engine->generation;
  EXPECT_TRUE(engine->follower().restore_kv_caches(engine->caches()));
  engine->publish();
  EXPECT_THAT(engine->step().finished_sending, ElementsAre(1));
  EXPECT_THAT(files(), IsEmpty());
  save(*engine);
}

TEST_F(ExampleConnectorTest, NeedsAFolder) {
  const KvConnectorContext context = context_of("{}");
  const auto made = example_connector_class().make_worker(context);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().param, "shared_storage_path");
}

}  // namespace
}  // namespace dormouse

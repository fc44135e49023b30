// Leases and time, when one of them is short.
#include "kv_connector/pull/pull_fixture.h"

namespace dormouse::pull {
namespace {

class PullPressureTest : public ::testing::Test {
 protected:
  EngineOptions producing(KvRole role) {
    return {.folder = folder.path,
            .name = "producer",
            .port = 1,
            .peers = R"(["127.0.0.1:2"])",
            .role = role};
  }
  EngineOptions consuming() {
    return {.folder = folder.path, .name = "consumer", .port = 2, .peers = R"(["127.0.0.1:1"])"};
  }
  // What the end of a prefill leg of 16 tokens, in 4 blocks, says.
  static KvRequestFinished leave(Engine& engine, RequestId id) {
    const std::vector<TokenId> prompt(16);
    const std::string params = R"({"do_remote_decode": true})";
    const KvRequest request{.id = id,
                            .tokens = prompt,
                            .prompt_length = 16,
                            .num_computed = 16,
                            .cache_salt = Engine::none,
                            .kv_transfer_params = params,
                            .finished = FinishReason::kLength};
    const auto first = static_cast<BlockId>(4 * (id % 8));
    const std::vector<BlockId> blocks = {first, first + 1, first + 2, first + 3};
    const KvRequestFinished left = engine.scheduler->request_finished(request, blocks);
    engine.step();
    return left;
  }
  static double declined(const Engine& engine) {
    return engine.scheduler->get_kv_connector_stats().at(0).second;
  }

  const Folder folder;
};

TEST_F(PullPressureTest, LeasesOfAnEngineThatAlsoReadsTakeHalfOfItsBlocks) {
  Engine engine(producing(KvRole::kBoth));
  std::string first;
  for (RequestId id = 0; id < 4; ++id) {
    const KvRequestFinished left = leave(engine, id);
    EXPECT_TRUE(left.delay_free) << id;
    if (id == 0)
      first = left.kv_transfer_params;
  }
  const KvRequestFinished more = leave(engine, 4);
  EXPECT_FALSE(more.delay_free);
  EXPECT_EQ(more.kv_transfer_params, "");
  EXPECT_EQ(declined(engine), 1);

  Engine consumer(consuming());
  EXPECT_EQ(consumer.load(1, first, {4, 5, 6, 7}, 16).output.failure, "");
  EXPECT_TRUE(eventually([&] {
    engine.step();
    return !engine.sent.empty();
  }));
  EXPECT_TRUE(leave(engine, 4).delay_free) << "one was read";
}

TEST_F(PullPressureTest, AnEngineThatOnlyProducesLeavesAllOfItsBlocks) {
  EngineOptions without_peers = producing(KvRole::kBoth);
  without_peers.peers = "[]";
  without_peers.port = 3;
  for (const EngineOptions& options : {producing(KvRole::kProducer), without_peers}) {
    Engine engine(options);
    for (RequestId id = 0; id < 8; ++id)
      EXPECT_TRUE(leave(engine, id).delay_free) << id;
    EXPECT_EQ(declined(engine), 0);
  }
}

TEST_F(PullPressureTest, HeartbeatsComeAsOftenAsTheOwnersLeasesNeed) {
  EngineOptions brief = producing(KvRole::kProducer);
  brief.extra = R"(, "kv_lease_duration": 0.6)";
  Engine producer(brief);
  Engine consumer(consuming());
  const std::string params = producer.prefill(7, {3}, 4, 50);
  const std::vector<TokenId> prompt(4);
  const KvRequest waiting{.id = 1,
                          .tokens = prompt,
                          .prompt_length = 4,
                          .cache_salt = Engine::none,
                          .kv_transfer_params = params};
  consumer.scheduler->on_new_request(waiting);
  consumer.step();
  std::this_thread::sleep_for(milliseconds(1500));  // allowed: that is how long it waits for room
  const auto match = consumer.scheduler->get_num_new_matched_tokens(waiting, 0);
  consumer.scheduler->update_state_after_alloc(waiting, std::vector<BlockId>{4}, match->tokens);
  EXPECT_EQ(consumer.finish(1).failure, "");
}

}  // namespace
}  // namespace dormouse::pull

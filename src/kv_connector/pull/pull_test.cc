#include <algorithm>

#include "base/json.h"
#include "kv_connector/pull/pull_fixture.h"

namespace dormouse::pull {
namespace {

using ::testing::Test;

class PullTest : public Test {
 protected:
  EngineOptions producing() { return {.folder = folder.path, .name = "producer", .port = 1}; }
  EngineOptions consuming() {
    return {.folder = folder.path, .name = "consumer", .port = 2, .peers = R"(["127.0.0.1:1"])"};
  }
  static std::string with(const std::string& params, const std::string& key, Json value) {
    Json::Object object = *parse_json(params)->object();
    for (auto& [name, old] : object) {
      if (name == key)
        old = std::move(value);
    }
    return Json(std::move(object)).dump();
  }

  Folder folder;
};

TEST_F(PullTest, ConsumerGetsTheProducersBytes) {
  Engine producer(producing());
  Engine consumer(consuming());
  const std::string params = producer.prefill(7, {3, 9, 1}, 10, 50);
  const auto loaded = consumer.load(1, params, {4, 5, 6}, 10);
  EXPECT_EQ(loaded.tokens, 10U);
  EXPECT_EQ(loaded.output.failure, "");
  EXPECT_TRUE(loaded.output.invalid_block_ids.empty());
  EXPECT_TRUE(consumer.holds(4, 50) && consumer.holds(5, 51) && consumer.holds(6, 52));
  EXPECT_TRUE(eventually([&] { return producer.step(), producer.sent == RequestIds{7}; }));
  EXPECT_EQ(consumer.stat("kv_completed_pulls_total"), 1);
  EXPECT_EQ(consumer.stat("kv_pulled_tokens_total"), 10);
  EXPECT_EQ(consumer.stat("kv_transferred_blocks_total"), 3);
  EXPECT_EQ(consumer.stat("kv_transferred_bytes_total"), 3 * test_shape().block_bytes());
  EXPECT_EQ(producer.stat("kv_leases_active"), 0);
}

TEST_F(PullTest, EachOutcomeIsToldOnce) {
  Engine producer(producing());
  Engine consumer(consuming());
  const std::string params = producer.prefill(7, {3}, 4, 50);
  consumer.load(1, params, {4}, 4);
  consumer.load(2, params, {5}, 4);  // the lease is over
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(consumer.step().finished_recving.empty());
    producer.step();
  }
  EXPECT_EQ(producer.sent, RequestIds{7});
}

TEST_F(PullTest, OnlyWhatIsNotComputedHereIsLoaded) {
  Engine producer(producing());
  Engine consumer(consuming());
  const std::string params = producer.prefill(7, {3, 9, 1}, 12, 50);
  consumer.fill(4, 99);
  EXPECT_EQ(consumer.start(1, params, {4, 5, 6}, 12, kBlockSize), 8U);
  EXPECT_EQ(consumer.finish(1).failure, "");
  EXPECT_TRUE(consumer.holds(4, 99) && consumer.holds(5, 51) && consumer.holds(6, 52));
}

TEST_F(PullTest, LoadIsOfferedUntilItIsStartedAndThenNeverAgain) {
  Engine consumer(consuming());
  const std::string params = Engine(producing()).prefill(7, {3, 9}, 8, 50);
  const std::vector<TokenId> prompt(8);
  const KvRequest request{.id = 1,
                          .tokens = prompt,
                          .prompt_length = 8,
                          .cache_salt = Engine::none,
                          .kv_transfer_params = params};
  consumer.scheduler->on_new_request(request);
  for (int i = 0; i < 3; ++i) {
    const auto match = consumer.scheduler->get_num_new_matched_tokens(request, 4);
    EXPECT_EQ(match->tokens, 4U);
    EXPECT_TRUE(match->load_is_async);
  }
  consumer.scheduler->update_state_after_alloc(request, std::vector<BlockId>{1, 2}, 8);
  const auto match = consumer.scheduler->get_num_new_matched_tokens(request, 4);
  EXPECT_EQ(match->tokens, 0U);
  EXPECT_FALSE(match->load_is_async);
}

TEST_F(PullTest, FullLocalHitReleasesTheLease) {
  Engine producer(producing());
  Engine consumer(consuming());
  const std::string params = producer.prefill(7, {3, 9}, 8, 50);
  EXPECT_EQ(consumer.start(1, params, {4, 5}, 8, 8), 0U);
  consumer.step();
  EXPECT_TRUE(eventually([&] { return producer.step(), producer.sent == RequestIds{7}; }));
}

TEST_F(PullTest, RequestThatEndsInTheQueueReleasesTheLease) {
  Engine producer(producing());
  Engine consumer(consuming());
  const std::string params = producer.prefill(7, {3, 9}, 8, 50);
  const KvRequest request{.id = 1,
                          .tokens = {},
                          .prompt_length = 8,
                          .cache_salt = Engine::none,
                          .kv_transfer_params = params,
                          .finished = FinishReason::kAbort};
  consumer.scheduler->on_new_request(request);
  consumer.scheduler->request_finished(request, {});
  EXPECT_TRUE(consumer.scheduler->has_pending_work());
  consumer.step();
  EXPECT_FALSE(consumer.scheduler->has_pending_work());
  EXPECT_TRUE(eventually([&] { return producer.step(), producer.sent == RequestIds{7}; }));
}

TEST_F(PullTest, RequestThatEndsDuringItsLoadCancelsItAndReleasesTheLease) {
  Engine producer(producing());
  Engine consumer(consuming());
  HeldReads held(consumer);
  const std::string params = producer.prefill(7, {3, 9}, 8, 50);
  consumer.start(1, params, {4, 5}, 8);
  consumer.step();
  ASSERT_TRUE(held.begun());
  const KvRequest request{.id = 1,
                          .tokens = {},
                          .prompt_length = 8,
                          .cache_salt = Engine::none,
                          .kv_transfer_params = params,
                          .finished = FinishReason::kAbort};
  EXPECT_FALSE(consumer.scheduler->request_finished(request, {}).delay_free);
  consumer.step();
  held.go_on();
  const auto output = consumer.finish(1);
  EXPECT_EQ(output.invalid_block_ids, (std::vector<BlockId>{4, 5}));
  EXPECT_EQ(consumer.stat("kv_failed_transfers_total"), 0);
  EXPECT_TRUE(eventually([&] { return producer.step(), producer.sent == RequestIds{7}; }));
}

struct Wrong {
  const char* key;
  Json value;
  const char* kind;
};

TEST_F(PullTest, OwnerRefusesEveryReferenceThatIsNotItsOwn) {
  Engine producer(producing());
  Engine consumer(consuming());
  const Wrong cases[] = {
      {"remote_incarnation", "another", "incarnation"},
      {"remote_generation", 99, "generation"},
      {"remote_request_id", "6", "expired"},
      {"lease_token", "00000000000000000000000000000000", "token"},
      {"remote_block_ids", Json::Array{Json(Json::Array{3, 4})}, "blocks"},
  };
  RequestId id = 10;
  for (const Wrong& wrong : cases) {
    consumer.fill(4, 1);
    const std::string params = producer.prefill(++id, {3, 9}, 8, 50);
    const auto loaded = consumer.load(id, with(params, wrong.key, wrong.value), {4, 5}, 8);
    EXPECT_NE(loaded.output.failure, "") << wrong.key;
    EXPECT_EQ(loaded.output.invalid_block_ids, (std::vector<BlockId>{4, 5})) << wrong.key;
    EXPECT_TRUE(consumer.holds(4, 1)) << wrong.key;
    EXPECT_EQ(producer.stat(std::string("kv_references_refused_") + wrong.kind + "_total"), 1);
  }
  EXPECT_EQ(producer.stat("kv_stale_references_refused_total"), 5);
  EXPECT_EQ(consumer.stat("kv_failed_transfers_total"), 5);
  EXPECT_EQ(consumer.stat("kv_completed_pulls_total"), 0);
}

TEST_F(PullTest, AnotherEngineAtTheSamePortIsNotReadFrom) {
  Engine producer(producing());
  Engine consumer(consuming());
  const std::string params = producer.prefill(7, {3}, 4, 50);
  const auto loaded = consumer.load(1, with(params, "remote_engine_id", "other"), {4}, 4);
  EXPECT_NE(loaded.output.failure.find("is engine producer"), std::string::npos)
      << loaded.output.failure;
}

TEST_F(PullTest, KvOfAnotherModelIsRefusedWithBothNames) {
  Engine producer(producing());
  EngineOptions options = consuming();
  options.model_hash = "others";
  Engine consumer(options);
  EXPECT_EQ(consumer.load(1, producer.prefill(7, {3}, 4, 50), {4}, 4).output.failure,
            "model_hash differs: others here, weights at the peer");
  consumer.scheduler->set_model_hash("weights");
  EXPECT_EQ(consumer.load(2, producer.prefill(8, {3}, 4, 50), {4}, 4).output.failure, "");
}

TEST_F(PullTest, BlocksComputedWithOtherWeightsAreRefusedByTheirOwner) {
  Engine producer(producing());
  Engine consumer(consuming());
  const std::string old = producer.prefill(7, {3}, 4, 50);
  EXPECT_EQ(consumer.load(1, producer.prefill(8, {4}, 4, 60), {4}, 4).output.failure, "");
  producer.scheduler->set_model_hash("newer");
  const std::string refusal = "engine producer refused the pull: model";
  const std::string newer = producer.prefill(9, {4}, 4, 60);
  EXPECT_NE(consumer.load(2, newer, {4}, 4).output.failure, "");
  consumer.scheduler->set_model_hash("newer");
  EXPECT_EQ(consumer.load(3, producer.prefill(10, {4}, 4, 60), {4}, 4).output.failure, "")
      << "it shook hands again";
  EXPECT_EQ(consumer.load(4, old, {4}, 4).output.failure.find(refusal), 0U);
}

TEST_F(PullTest, LeaseThatNobodyPullsExpires) {
  EngineOptions options = producing();
  options.extra = R"(, "kv_lease_duration": 0.1)";
  Engine producer(options);
  Engine consumer(consuming());
  const std::string params = producer.prefill(7, {3}, 4, 50);
  EXPECT_TRUE(eventually([&] { return producer.step(), producer.sent == RequestIds{7}; }));
  EXPECT_EQ(producer.stat("kv_expired_leases_total"), 1);
  EXPECT_NE(consumer.load(1, params, {4}, 4).output.failure, "");
  EXPECT_EQ(producer.stat("kv_references_refused_expired_total"), 1);
}

TEST_F(PullTest, HeartbeatsKeepALeaseWhileItsRequestWaits) {
  EngineOptions options = producing();
  options.extra = R"(, "kv_lease_duration": 0.6)";
  Engine producer(options);
  EngineOptions beating = consuming();
  beating.extra = R"(, "kv_lease_duration": 0.3)";  // a beat every 50 ms
  Engine consumer(beating);
  const std::string params = producer.prefill(7, {3}, 4, 50);
  const std::vector<TokenId> prompt(4);
  const KvRequest request{.id = 1,
                          .tokens = prompt,
                          .prompt_length = 4,
                          .cache_salt = Engine::none,
                          .kv_transfer_params = params};
  consumer.scheduler->on_new_request(request);
  EXPECT_TRUE(consumer.scheduler->has_pending_work());
  consumer.step();
  EXPECT_TRUE(stays([&] { return producer.stat("kv_leases_active") == 1; }, milliseconds(1200)));
  consumer.scheduler->update_state_after_alloc(request, std::vector<BlockId>{4}, 4);
  EXPECT_EQ(consumer.finish(1).failure, "");
  EXPECT_TRUE(consumer.holds(4, 50));
}

TEST_F(PullTest, LeaseThatEndsDuringTheReadMakesItWorthless) {
  EngineOptions options = producing();
  options.extra = R"(, "kv_lease_duration": 0.15)";
  Engine producer(options);
  Engine consumer(consuming());
  consumer.hooks.before_read = [&] {
    EXPECT_TRUE(eventually([&] { return producer.stat("kv_leases_active") == 0; }));
  };
  const std::string params = producer.prefill(7, {3}, 4, 50);
  const auto loaded = consumer.load(1, params, {4}, 4);
  EXPECT_EQ(loaded.output.failure, "the lease ended while its blocks were read");
  EXPECT_EQ(loaded.output.invalid_block_ids, std::vector<BlockId>{4});
}

TEST_F(PullTest, ChecksumFindsACorruptedCopy) {
  Engine producer(producing());
  EngineOptions options = consuming();
  options.verify = true;
  Engine consumer(options);
  const std::string params = producer.prefill(7, {3, 9}, 8, 50);
  consumer.hooks.after_read = [](std::span<const ReadSpan> spans) {
    spans.back().local[77] ^= std::byte{4};
  };
  const auto loaded = consumer.load(1, params, {4, 5}, 8);
  EXPECT_NE(loaded.output.failure.find("checksum of block 5"), std::string::npos)
      << loaded.output.failure;
  EXPECT_EQ(loaded.output.invalid_block_ids, (std::vector<BlockId>{4, 5}));
  EXPECT_EQ(consumer.stat("kv_verify_mismatches_total"), 1);
  consumer.hooks.after_read = [](auto) {};
  const std::string again = producer.prefill(8, {3, 9}, 8, 50);
  EXPECT_EQ(consumer.load(2, again, {4, 5}, 8).output.failure, "");
}

TEST_F(PullTest, PeerThatIsNotThereFailsTheLoadAtOnce) {
  Engine consumer(consuming());
  const std::string params = Engine(producing()).prefill(7, {3}, 4, 50);
  const Time began = Clock::now();
  const std::string failure = consumer.load(1, params, {4}, 4).output.failure;
  EXPECT_EQ(failure, "peer 127.0.0.1:1: nobody listens there");
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(1));
}

TEST_F(PullTest, PeerThatStartedAnewIsMetAgain) {
  auto producer = std::make_unique<Engine>(producing());
  Engine consumer(consuming());
  const std::string old = producer->prefill(7, {3}, 4, 50);
  EXPECT_EQ(consumer.load(1, producer->prefill(8, {4}, 4, 60), {4}, 4).output.failure, "");
  EngineOptions options = producing();
  options.incarnation = "second";
  producer.reset();
  producer = std::make_unique<Engine>(options);
  EXPECT_NE(consumer.load(2, old, {4}, 4).output.failure, "");
  EXPECT_EQ(producer->stat("kv_references_refused_incarnation_total"), 1);
  EXPECT_EQ(consumer.load(3, producer->prefill(7, {3}, 4, 70), {4}, 4).output.failure, "");
  EXPECT_TRUE(consumer.holds(4, 70));
}

TEST_F(PullTest, RankThatConfirmedIsNotAskedAgain) {
  EngineOptions options = producing();
  options.world_size = 2;
  options.heads = {0, 1};
  Engine producer(options);
  options.rank = 1;
  options.heads = {1, 2};
  Engine second(options);
  producer.other_rank = second.worker.get();
  producer.scheduler->set_xfer_handshake_metadata(
      {producer.worker->get_handshake_metadata(), second.worker->get_handshake_metadata()});
  Engine consumer(consuming());
  int imports = 0;
  consumer.hooks.before_import = [&] {
    return ++imports == 2 ? fail(ErrorCode::kUnavailable, "not yet") : Status();
  };
  EXPECT_EQ(consumer.load(1, producer.prefill(7, {3}, 4, 50), {4}, 4).output.failure, "");
  EXPECT_EQ(consumer.stat("kv_handshakes_total"), 2);
  EXPECT_EQ(producer.stat("kv_granted_pulls_total"), 1);
  EXPECT_EQ(second.stat("kv_granted_pulls_total"), 1);
}

TEST_F(PullTest, PeerWithoutAllOfTheHeadsIsNotReadFrom) {
  EngineOptions options = producing();
  options.heads = {0, 1};
  Engine producer(options);
  Engine consumer(consuming());
  EXPECT_EQ(consumer.load(1, producer.prefill(7, {3}, 4, 50), {4}, 4).output.failure,
            "this rank has the KV heads 0-1; the peer's ranks have 0-0");
  EXPECT_EQ(producer.stat("kv_granted_pulls_total"), 0);
}

TEST_F(PullTest, HeadsThatSeveralRanksHaveCannotBePulled) {
  EngineOptions options = consuming();
  options.world_size = 2;
  const auto refused = PullWorker::create(context_of(options), "IpcConnector", {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused.error().message,
            "rank 0 of 2 has the KV heads 0-1 of 2: heads that several ranks have cannot be "
            "pulled");
  options.heads = {0, 1};
  EXPECT_TRUE(PullWorker::create(context_of(options), "IpcConnector", {}));
}

TEST_F(PullTest, FolderThatIsNoMeetingPlaceIsRefusedByItsKey) {
  const auto refusal = [&](const std::string& path) {
    EngineOptions options = consuming();
    options.folder = path;
    return PullScheduler::create(context_of(options)).error();
  };
  const Error missing = refusal("relative/folder");
  EXPECT_EQ(missing.param, "kv_connector_extra_config.ipc_dir");
  EXPECT_EQ(missing.message,
            "kv_connector_extra_config.ipc_dir: relative/folder: No such file or directory. Choose "
            "a folder of your own, whose parent exists, or leave ipc_dir out");
  std::filesystem::permissions(folder.path, std::filesystem::perms::all);
  const std::string shared = refusal(folder.path).message;
  EXPECT_NE(shared.find(folder.path + ": others may enter or read it. Choose"), std::string::npos)
      << shared;
}

TEST_F(PullTest, ProducerWithoutPublishedRanksLeavesNothing) {
  Engine producer(producing());
  producer.scheduler->set_xfer_handshake_metadata({});
  const std::string params = R"({"do_remote_decode": true})";
  const KvRequest request{.id = 1,
                          .tokens = {},
                          .prompt_length = 4,
                          .num_computed = 4,
                          .cache_salt = Engine::none,
                          .kv_transfer_params = params,
                          .finished = FinishReason::kLength};
  const auto finished = producer.scheduler->request_finished(request, std::vector<BlockId>{1});
  EXPECT_FALSE(finished.delay_free);
  EXPECT_EQ(finished.kv_transfer_params, "");
}

TEST_F(PullTest, ConsumerWithoutPeersIsWarnedAboutAtItsStart) {
  const auto told = [&](const char* peers) {
    EngineOptions options = consuming();
    options.role = KvRole::kConsumer;
    options.peers = peers;
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(PullScheduler::create(context_of(options)));
    return ::testing::internal::GetCapturedStderr().find("can pull from nobody") !=
           std::string::npos;
  };
  EXPECT_TRUE(told("[]"));
  EXPECT_FALSE(told(R"(["127.0.0.1:1"])"));
}

TEST_F(PullTest, OnlyACompletePrefillLegLeavesBlocks) {
  Engine producer(producing());
  const auto finish = [&](const char* params, std::optional<FinishReason> reason) {
    const std::string text = params;
    const KvRequest request{.id = 1,
                            .tokens = {},
                            .prompt_length = 4,
                            .num_computed = 5,
                            .cache_salt = Engine::none,
                            .kv_transfer_params = text,
                            .finished = reason};
    return producer.scheduler->request_finished(request, std::vector<BlockId>{1, 2}).delay_free;
  };
  EXPECT_FALSE(finish("", FinishReason::kLength));
  EXPECT_FALSE(finish(R"({"do_remote_decode": false})", FinishReason::kLength));
  EXPECT_FALSE(finish(R"({"do_remote_decode": true})", FinishReason::kAbort));
  EXPECT_FALSE(finish(R"({"do_remote_decode": true})", FinishReason::kError));
  EXPECT_TRUE(finish(R"({"do_remote_decode": true})", FinishReason::kStop));
}

TEST_F(PullTest, WordsThatAreNoneAreAnsweredAndTheServersLive) {
  Engine producer(producing());
  const auto token = net::open_meeting_place(folder.path)->token;
  const Time deadline = Clock::now() + std::chrono::seconds(10);
  for (const std::string& path :
       {scheduler_socket(folder.path, 1), rank_socket(folder.path, 1, 0)}) {
    auto channel = net::connect_with_token(path, token, deadline);
    ASSERT_TRUE(channel) << channel.error().message;
    for (const std::string& bytes :
         {std::string("\xc1"), std::string(), encode_message(Confirmed{true}, 3),
          to_msgpack(Json(Json::Object{{"type", "pull"}, {"id", 9}}))}) {
      ASSERT_TRUE(channel->send({.bytes = bytes, .descriptors = {}}, deadline));
      const auto answer = channel->receive(deadline);
      ASSERT_TRUE(answer) << answer.error().message;
      EXPECT_EQ(type_of(answer->bytes), "error");
    }
  }
  Engine consumer(consuming());
  EXPECT_EQ(consumer.load(1, producer.prefill(7, {3}, 4, 50), {4}, 4).output.failure, "");
}

}  // namespace
}  // namespace dormouse::pull

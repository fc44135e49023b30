// Two engines on one host, and the KV cache between them.
#include <gmock/gmock.h>

#include <cstdlib>
#include <numeric>
#include <thread>

#include "base/json.h"
#include "engine/engine_fixture.h"

namespace dormouse {
namespace {

using ::testing::HasSubstr;

constexpr const char* kPrefillLeg = R"({"do_remote_decode":true,"do_remote_prefill":false})";

struct Outcome {
  Answer answer;
  std::string kv_transfer_params;
};

Request request_for(std::size_t prompt_tokens, std::uint32_t max_tokens,
                    std::string kv_transfer_params = {}) {
  Request request;
  request.prompt.resize(prompt_tokens);
  std::iota(request.prompt.begin(), request.prompt.end(), 10);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.logprobs = 0;
  request.sampling.ignore_eos = true;
  request.kv_transfer_params = std::move(kv_transfer_params);
  return request;
}

class TransferTest : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = ::testing::TempDir() + "transfer_test.gguf";
    ASSERT_TRUE(testing::write_tiny_model(model_, {.context = 512}));
    std::string folder = ::testing::TempDir() + "/transfer.XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }
  void TearDown() override {
    engines_.clear();
    std::filesystem::remove_all(folder_);
  }

  EngineConfig config() const {
    EngineConfig config;
    config.model = model_;
    config.kv_cache_memory_bytes = 4 << 20;
    config.threads = 1;
    return config;
  }
  Engine& start(const EngineConfig& config) {
    engines_.push_back(Engine::start(config));
    const Status loaded = engines_.back()->wait_until_loaded();
    EXPECT_TRUE(loaded) << loaded.error().message;
    return *engines_.back();
  }
  EngineConfig ipc(const std::string& name, std::uint16_t port, std::uint16_t peer,
                   KvLoadFailurePolicy policy = KvLoadFailurePolicy::kFail) const {
    EngineConfig wanted = config();
    wanted.kv_transfer = {.kv_connector = "IpcConnector",
                          .engine_id = name,
                          .kv_port = port,
                          .kv_load_failure_policy = policy};
    wanted.kv_transfer.kv_connector_extra_config =
        Json()
            .add("ipc_dir", folder_)
            .add("peers", Json().push("127.0.0.1:" + std::to_string(peer)))
            .dump();
    return wanted;
  }
  Engine& start_producer() { return start(ipc("producer", 1, 2)); }
  Engine& start_consumer() { return start(ipc("consumer", 2, 1)); }

  static Outcome ask(Engine& engine, Request request) {
    Collector collector;
    Outcome outcome;
    const auto sink = collector.sink();
    const auto accepted = engine.submit(std::move(request), [&](RequestOutput output) {
      if (output.finished)
        outcome.kv_transfer_params = output.kv_transfer_params;
      sink(std::move(output));
    });
    EXPECT_TRUE(accepted) << accepted.error().message;
    outcome.answer = collector.wait();
    return outcome;
  }
  static std::string leg(Engine& producer, std::size_t prompt_tokens = 40) {
    return ask(producer, request_for(prompt_tokens, 1, kPrefillLeg)).kv_transfer_params;
  }
  static bool eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 5000 && !condition(); ++i)
      std::this_thread::sleep_for(milliseconds(2));  // allowed: a status changes in silence
    return condition();
  }

  std::string model_;
  std::string folder_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

TEST_F(TransferTest, APulledPromptIsAnsweredAsOneEngineWould) {
  Engine& single = start(config());
  Engine& producer = start_producer();
  Engine& consumer = start_consumer();
  std::uint64_t transferred = 0;
  for (const std::size_t tokens : {1, 2, 15, 16, 17, 40, 200}) {
    const Answer expected = ask(single, request_for(tokens, 8)).answer;
    const Answer got = ask(consumer, request_for(tokens, 8, leg(producer, tokens))).answer;
    EXPECT_EQ(got, expected) << tokens << ": " << got.error.message;
    ASSERT_TRUE(consumer.reset_prefix_cache(false).value());
    transferred += tokens - 1;
  }
  EXPECT_EQ(consumer.counters().transferred_tokens, transferred);
  EXPECT_EQ(consumer.counters().recomputed_tokens, 0U);
  EXPECT_TRUE(eventually([&] { return producer.status().blocks_used == 0; }))
      << "a lease ends once its blocks were pulled";
}

TEST_F(TransferTest, ALeaseIsKnownBeforeItsTokenLeavesTheEngine) {
  Engine& producer = start_producer();
  Engine& consumer = start_consumer();
  Answer pulled;
  std::atomic<bool> done = false;
  const auto sink = [&](RequestOutput output) {
    if (!output.finished)
      return;
    pulled = ask(consumer, request_for(40, 4, output.kv_transfer_params)).answer;
    done = true;
  };
  ASSERT_TRUE(producer.submit(request_for(40, 1, kPrefillLeg), sink));
  ASSERT_TRUE(eventually([&] { return done.load(); }));
  EXPECT_EQ(pulled.finished, FinishReason::kLength) << pulled.error.message;
}

TEST_F(TransferTest, AfterAWakeUpTheHandshakeIsPublishedAgain) {
  Engine& producer = start_producer();
  Engine& consumer = start_consumer();
  const Answer before = ask(consumer, request_for(40, 8, leg(producer))).answer;
  for (int cycle = 0; cycle < 2; ++cycle) {
    ASSERT_TRUE(producer.sleep({}));
    ASSERT_TRUE(producer.wake_up(std::nullopt));
    ASSERT_TRUE(consumer.reset_prefix_cache(false).value());
    EXPECT_EQ(ask(consumer, request_for(40, 8, leg(producer))).answer, before);
  }
  EXPECT_EQ(consumer.counters().transferred_tokens, 3 * 39U);
}

TEST_F(TransferTest, AReferenceFromBeforeASleepIsRefused) {
  Engine& producer = start_producer();
  Engine& consumer = start_consumer();
  const std::string stale = leg(producer);
  ASSERT_TRUE(producer.sleep({}));
  Answer got = ask(consumer, request_for(40, 8, stale)).answer;
  EXPECT_EQ(got.error.code, ErrorCode::kTransferFailed) << "asleep";
  ASSERT_TRUE(producer.wake_up(std::nullopt));
  (void)leg(producer);  // the same blocks, with something else in them
  got = ask(consumer, request_for(40, 8, stale)).answer;
  EXPECT_EQ(got.error.code, ErrorCode::kTransferFailed) << "another generation";
  EXPECT_EQ(consumer.status().blocks_used, 0U);
}

TEST_F(TransferTest, WhatCannotBePulledIsComputed) {
  Engine& single = start(config());
  const Answer expected = ask(single, request_for(40, 8)).answer;
  Engine& producer = start_producer();
  Engine& consumer = start(ipc("consumer", 2, 1, KvLoadFailurePolicy::kRecompute));
  const std::string stale = leg(producer);
  ASSERT_TRUE(producer.sleep({}));
  EXPECT_EQ(ask(consumer, request_for(40, 8, stale)).answer, expected);
  EXPECT_EQ(consumer.counters().recomputed_tokens, 40U);
}

TEST_F(TransferTest, KvOfOtherWeightsOrOtherPositionsIsOfNoUse) {
  Engine& producer = start_producer();
  const testing::TinyModelOptions others[] = {{.context = 512, .seed = 77},
                                              {.context = 512, .rope_base = 50000}};
  std::uint16_t number = 2;
  for (const testing::TinyModelOptions& other : others) {
    EngineConfig wanted = ipc("consumer" + std::to_string(number), number, 1);
    wanted.model = ::testing::TempDir() + "other" + std::to_string(number++) + ".gguf";
    ASSERT_TRUE(testing::write_tiny_model(wanted.model, other));
    Engine& consumer = start(wanted);
    const Answer got = ask(consumer, request_for(40, 8, leg(producer))).answer;
    EXPECT_EQ(got.error.code, ErrorCode::kTransferFailed);
    EXPECT_EQ(consumer.counters().transferred_tokens, 0U);
  }
}

TEST_F(TransferTest, KvOfAnotherPromptOrOfMoreTokensIsRefused) {
  Engine& producer = start_producer();
  Engine& consumer = start_consumer();
  Request other = request_for(40, 8, leg(producer));
  other.prompt[7] += 1;
  EXPECT_EQ(ask(consumer, std::move(other)).answer.error.code, ErrorCode::kTransferFailed);

  std::string forged = leg(producer, 40);
  const std::string count = "\"remote_num_tokens\":40";
  ASSERT_NE(forged.find(count), std::string::npos);
  forged.replace(forged.find(count), count.size(), "\"remote_num_tokens\":46");
  EXPECT_EQ(ask(consumer, request_for(46, 8, forged)).answer.error.code,
            ErrorCode::kTransferFailed);

  Request salted = request_for(40, 8, leg(producer));
  salted.cache_salt = "another user";
  EXPECT_EQ(ask(consumer, std::move(salted)).answer.error.code, ErrorCode::kTransferFailed);
}

TEST_F(TransferTest, ALoadIsTakenUpAsSoonAsItHasEnded) {
  Engine& producer = start_producer();
  Engine& consumer = start_consumer();
  (void)ask(consumer, request_for(40, 1, leg(producer)));  // the first one shakes hands
  auto best = std::chrono::steady_clock::duration::max();
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(consumer.reset_prefix_cache(false).value());
    const std::string params = leg(producer);
    const auto start = std::chrono::steady_clock::now();
    (void)ask(consumer, request_for(40, 1, params));
    best = std::min(best, std::chrono::steady_clock::now() - start);
  }
  EXPECT_LT(best, milliseconds(100));
}

TEST_F(TransferTest, ASleepEndsLeasesAtOnceOrAfterTheDrain) {
  Engine& producer = start_producer();
  (void)leg(producer);
  EXPECT_EQ(producer.status().kv_sends, 1U);
  EXPECT_GT(producer.status().blocks_used, 0U);
  ASSERT_TRUE(producer.sleep({.mode = PauseMode::kAbort}));
  EXPECT_EQ(producer.status().blocks_used, 0U);
  ASSERT_TRUE(producer.wake_up(std::nullopt));

  (void)leg(producer);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(producer.sleep({.mode = PauseMode::kWait, .deadline = milliseconds(300)}));
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(300));
  EXPECT_EQ(producer.status().blocks_used, 0U);
}

TEST_F(TransferTest, AWakeUpCancelsASleepThatWaitsForLeases) {
  Engine& producer = start_producer();
  Engine& consumer = start_consumer();
  const std::string params = leg(producer);
  std::thread sleeper([&] {
    const auto slept = producer.sleep({.mode = PauseMode::kWait});
    EXPECT_EQ(slept ? ErrorCode::kInternal : slept.error().code, ErrorCode::kCancelled);
  });
  EXPECT_TRUE(eventually([&] { return producer.status().state == EngineState::kPausing; }));
  EXPECT_TRUE(producer.wake_up(std::nullopt));
  sleeper.join();
  EXPECT_EQ(ask(consumer, request_for(40, 4, params)).answer.finished, FinishReason::kLength)
      << "the lease is still good";
}

TEST_F(TransferTest, NewWeightsWaitForLeasesOfTheOldOnes) {
  Engine& producer = start_producer();
  Engine& consumer = start_consumer();
  const std::string params = leg(producer);
  const auto refused = producer.reload_weights();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message, HasSubstr("hold some for peers"));
  (void)ask(consumer, request_for(40, 4, params));
  EXPECT_TRUE(eventually([&] { return producer.status().kv_sends == 0; }));
  EXPECT_TRUE(producer.reload_weights());
}

TEST_F(TransferTest, ASleepingConsumerLetsGoOfItsProducer) {
  Engine& producer = start_producer();
  Engine& consumer = start_consumer();
  const Answer before = ask(consumer, request_for(40, 8, leg(producer))).answer;
  ASSERT_TRUE(consumer.sleep({}));
  ASSERT_TRUE(producer.sleep({}));
  ASSERT_TRUE(consumer.wake_up(std::nullopt));
  ASSERT_TRUE(producer.wake_up(std::nullopt));
  EXPECT_EQ(ask(consumer, request_for(40, 8, leg(producer))).answer, before);
  EXPECT_EQ(consumer.counters().recomputed_tokens, 0U);
}

TEST_F(TransferTest, ThePrefixOfAConversationComesBackFromTheTier) {
  EngineConfig wanted = config();
  wanted.kv_transfer.kv_connector = "OffloadingConnector";
  Engine& engine = start(wanted);
  const Answer before = ask(engine, request_for(200, 8)).answer;
  EXPECT_TRUE(eventually([&] { return engine.status().kv_sends == 0; }));
  ASSERT_TRUE(engine.sleep({}));
  ASSERT_TRUE(engine.wake_up(std::nullopt));
  EXPECT_EQ(ask(engine, request_for(200, 8)).answer, before);
  EXPECT_EQ(engine.counters().transferred_tokens, 192U) << "all full blocks of 16";
}

TEST_F(TransferTest, ParametersAreRefusedBeforeTheRequestIsAccepted) {
  Engine& consumer = start_consumer();
  for (const char* params : {"{\"do_remote_prefill\":true}", "{\"do_remote_prefill\":1}",
                             "{\"do_remote_prefill\":true,\"do_remote_decode\":true}"}) {
    const auto accepted = consumer.submit(request_for(5, 1, params), [](RequestOutput) {});
    ASSERT_FALSE(accepted) << params;
    EXPECT_EQ(accepted.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(ask(consumer, request_for(5, 1)).answer.finished, FinishReason::kLength);
}

TEST_F(TransferTest, AConnectorThatCannotFollowIsRefusedAtTheStart) {
  EngineConfig wanted = config();
  wanted.kv_transfer = {.kv_connector = "LegacyConnector",
                        .kv_connector_module_path = DM_LEGACY_MODULE};
  const auto engine = Engine::start(wanted);
  const Status loaded = engine->wait_until_loaded();
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().message, "LegacyConnector does not support sleep mode");
}

TEST_F(TransferTest, WithoutSleepModeItRunsAndNothingIsEverUnmapped) {
  EngineConfig wanted = config();
  wanted.enable_sleep_mode = false;
  wanted.kv_transfer = {.kv_connector = "LegacyConnector",
                        .kv_connector_module_path = DM_LEGACY_MODULE};
  Engine& engine = start(wanted);
  const Answer before = ask(engine, request_for(40, 8)).answer;
  for (const auto& refused :
       {engine.sleep({.level = 1}), engine.sleep({.level = 2}), engine.release_kv_cache_memory()}) {
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(refused.error().message, "LegacyConnector does not support sleep mode");
  }
  EXPECT_EQ(engine.status().memory.at("kv_cache").generation, 1U);
  EXPECT_TRUE(engine.sleep({.level = 0})) << "a pause is never refused";
  EXPECT_TRUE(engine.resume());
  EXPECT_EQ(ask(engine, request_for(40, 8)).answer, before);
}

TEST_F(TransferTest, AnUnknownConnectorFailsTheStartByName) {
  EngineConfig wanted = config();
  wanted.kv_transfer.kv_connector = "NoSuchConnector";
  const auto engine = Engine::start(wanted);
  const Status loaded = engine->wait_until_loaded();
  ASSERT_FALSE(loaded);
  EXPECT_THAT(loaded.error().message, HasSubstr("Unsupported connector type: NoSuchConnector"));
}

TEST_F(TransferTest, WithoutAConnectorParametersAreIgnored) {
  Engine& single = start(config());
  const Outcome outcome = ask(single, request_for(5, 1, kPrefillLeg));
  EXPECT_EQ(outcome.answer.finished, FinishReason::kLength);
  EXPECT_EQ(outcome.kv_transfer_params, "");
}

}  // namespace
}  // namespace dormouse

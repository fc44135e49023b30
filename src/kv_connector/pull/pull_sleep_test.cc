#include <atomic>
#include <thread>

#include "device/host/block_census.h"
#include "kv_connector/pull/pull_fixture.h"

namespace dormouse::pull {
namespace {

constexpr milliseconds kGiveBackPatience(600);  // longer than owners are told about a sleep

class PullSleepTest : public ::testing::Test {
 protected:
  EngineOptions producing() { return {.folder = folder.path, .name = "producer", .port = 1}; }
  EngineOptions consuming() {
    return {.folder = folder.path, .name = "consumer", .port = 2, .peers = R"(["127.0.0.1:1"])"};
  }

  bool gone_from(Engine& producer) {
    return eventually([&] { return producer.stat("kv_importers") == 0; });
  }

  // Of this process, as an importer would.
  static std::uint64_t held_here(Engine& engine, const KvCaches& caches) {
    return *(*make_ipc_agent(engine.driver, 1)->holding(caches))(::getpid());
  }

  // A peer that speaks the protocol by hand.
  struct RawImporter {
    RawImporter(const std::string& folder, const std::string& name, bool reads = true)
        : channel(*net::connect_with_token(rank_socket(folder, 1, 0),
                                           net::open_meeting_place(folder)->token, deadline)) {
      say(encode_message(Import{name}, 1));
      if (!reads)
        return;
      memory = *channel.receive(deadline);
      EXPECT_EQ(type_of(memory.bytes), "memory");
    }
    void say(std::string bytes) {
      EXPECT_TRUE(channel.send({.bytes = std::move(bytes), .descriptors = {}}, deadline));
    }
    // Answers the next revocation and keeps what it holds.
    void lie() {
      const auto notice = channel.receive(deadline);
      ASSERT_TRUE(notice);
      EXPECT_EQ(type_of(notice->bytes), "revoke");
      say(encode_message(Revoked{1}));
    }
    Time deadline = Clock::now() + std::chrono::seconds(10);
    net::Channel channel;
    net::Message memory;
  };

  Folder folder;
};

TEST_F(PullSleepTest, SleepTakesTheMappingBackFromThePeer) {
  Engine producer(producing());
  Engine consumer(consuming());
  consumer.load(1, producer.prefill(7, {3}, 4, 50), {4}, 4);
  const KvCaches caches = producer.caches();
  EXPECT_EQ(consumer.stat("kv_pins"), 1);
  EXPECT_EQ(producer.stat("kv_importers"), 1);
  EXPECT_GT(held_here(producer, caches), 0U);
  Unmapping unmapping{.deadline = Clock::now() + std::chrono::seconds(10)};
  ASSERT_TRUE(producer.worker->release_kv_caches(unmapping));
  EXPECT_EQ(held_here(producer, caches), 0U);
  EXPECT_EQ(consumer.stat("kv_pins"), 0);
  EXPECT_EQ(producer.stat("kv_importers"), 0);
  EXPECT_EQ(producer.stat("kv_registrations"), 0);
  EXPECT_EQ(producer.stat("kv_revocations_total"), 1);
  EXPECT_TRUE(producer.worker->release_kv_caches(unmapping)) << "nothing is registered";
}

TEST_F(PullSleepTest, AfterTheWakeUpOldReferencesAreRefusedAndNewOnesServed) {
  Engine producer(producing());
  Engine consumer(consuming());
  const std::string old = producer.prefill(7, {3}, 4, 50);
  consumer.load(1, producer.prefill(8, {4}, 4, 60), {4}, 4);
  ASSERT_TRUE(producer.sleep());
  producer.wake_up();
  EXPECT_EQ(producer.stat("kv_registrations"), 1);
  consumer.fill(5, 1);
  EXPECT_NE(consumer.load(2, old, {5}, 4).output.failure, "");
  EXPECT_TRUE(consumer.holds(5, 1));
  EXPECT_EQ(producer.stat("kv_references_refused_generation_total"), 1);
  EXPECT_EQ(consumer.load(3, producer.prefill(9, {3}, 4, 70), {5}, 4).output.failure, "");
  EXPECT_TRUE(consumer.holds(5, 70));
  EXPECT_EQ(consumer.stat("kv_handshakes_total"), 2);
}

TEST_F(PullSleepTest, AsleepTheProducerIsUnavailable) {
  Engine producer(producing());
  Engine consumer(consuming());
  const std::string params = producer.prefill(7, {3}, 4, 50);
  ASSERT_TRUE(producer.sleep());
  const auto loaded = consumer.load(1, params, {4}, 4);
  EXPECT_EQ(loaded.output.failure,
            "peer 127.0.0.1:1: it is unavailable: its KV cache is not mapped");
}

TEST_F(PullSleepTest, NothingOldIsReadOrHeldAfterTheProducersSleep) {
  Engine producer(producing());
  Engine consumer(consuming());
  const std::string old = producer.prefill(7, {3}, 4, 50);
  consumer.load(1, producer.prefill(8, {3}, 4, 50), {4}, 4);
  const BlockCensus before = *own_blocks();
  ASSERT_TRUE(producer.sleep());
  const BlockCensus gone = gone_since(before, *own_blocks());
  producer.wake_up();
  EXPECT_FALSE(gone.empty());
  EXPECT_TRUE(holders_of(gone).empty()) << "pages that were unmapped are pinned";
  consumer.load(2, producer.prefill(9, {3}, 4, 70), {4}, 4);
  EXPECT_FALSE(consumer.holds(4, 50)) << "the text of before the sleep";
  EXPECT_TRUE(consumer.holds(4, 70));
  EXPECT_NE(consumer.load(3, old, {5}, 4).output.failure, "");
  EXPECT_EQ(producer.stat("kv_references_refused_generation_total"), 1);
}

TEST_F(PullSleepTest, SleepEndsTheLeasesThatNobodyReads) {
  Engine producer(producing());
  producer.prefill(7, {3}, 4, 50);
  producer.prefill(8, {4}, 4, 50);
  Unmapping unmapping{.deadline = Clock::now() + std::chrono::seconds(10)};
  ASSERT_TRUE(producer.worker->release_kv_caches(unmapping));
  EXPECT_EQ(producer.stat("kv_leases_active"), 0);
  producer.step();
  EXPECT_EQ(producer.sent, (RequestIds{7, 8}));
}

TEST_F(PullSleepTest, SleepWaitsForAGrantedReadWhichThenCounts) {
  Engine producer(producing());
  Engine consumer(consuming());
  HeldReads held(consumer);
  consumer.start(1, producer.prefill(7, {3}, 4, 50), {4}, 4);
  consumer.step();
  ASSERT_TRUE(held.begun());
  std::atomic<bool> asleep = false;
  std::thread sleeper([&] {
    EXPECT_TRUE(producer.sleep());
    asleep = true;
  });
  EXPECT_TRUE(eventually([&] { return producer.stat("kv_revocations_total") == 1; }));
  EXPECT_TRUE(stays([&] { return !asleep; }, milliseconds(30)));
  EXPECT_EQ(producer.stat("kv_leases_active"), 1);
  held.go_on();
  sleeper.join();
  EXPECT_EQ(consumer.finish(1).failure, "");
  EXPECT_TRUE(consumer.holds(4, 50));
}

TEST_F(PullSleepTest, ImporterThatDoesNotAnswerFailsTheSleepByNameAndNothingIsUnmapped) {
  Engine producer(producing());
  producer.fill(3, 50);
  const RawImporter silent(folder.path, "mute");
  const Time began = Clock::now();
  const auto slept = producer.sleep(milliseconds(100));
  ASSERT_FALSE(slept);
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(2));
  EXPECT_EQ(slept.error().code, ErrorCode::kDeadlineExceeded);
  const std::string& text = slept.error().message;
  EXPECT_EQ(text.find(fmt::format("IpcConnector: importer mute (pid {}) did not release its "
                                  "mapping within 1",
                                  ::getpid())),
            0U)
      << text;
  EXPECT_NE(text.find("nothing was unmapped. Use force=true to go on without it"),
            std::string::npos)
      << text;
  EXPECT_TRUE(producer.allocator.is_mapped(kKvCacheTag));
  EXPECT_TRUE(producer.holds(3, 50));
}

TEST_F(PullSleepTest, FailedSleepIsRepairedFully) {
  Engine producer(producing());
  Engine consumer(consuming());
  consumer.load(1, producer.prefill(7, {3}, 4, 50), {4}, 4);
  {
    const RawImporter silent(folder.path, "mute");
    ASSERT_FALSE(producer.sleep(milliseconds(50)));
  }
  EXPECT_EQ(producer.stat("kv_registrations"), 1);
  EXPECT_EQ(producer.caches().generation, 1U);
  EXPECT_EQ(consumer.load(2, producer.prefill(8, {3}, 4, 60), {4}, 4).output.failure, "");
  EXPECT_TRUE(consumer.holds(4, 60));
  EXPECT_TRUE(producer.sleep());
  EXPECT_EQ(consumer.stat("kv_pins"), 0);
}

TEST_F(PullSleepTest, ImporterIsAwaitedAlsoWhereTheSystemCannotTellWhoHoldsWhat) {
  Engine producer(producing());
  producer.hooks.sees_holders = false;
  const RawImporter silent(folder.path, "mute");
  EXPECT_FALSE(producer.sleep(milliseconds(50)));
  Unmapping unmapping{.deadline = Clock::now() + milliseconds(50), .force = true};
  ASSERT_TRUE(producer.worker->release_kv_caches(unmapping));
  ASSERT_EQ(unmapping.kept.size(), 1U);
  EXPECT_EQ(unmapping.kept[0].bytes, producer.cache.size()) << "at the worst";
}

TEST_F(PullSleepTest, WordOfAnImporterIsNotEnough) {
  Engine producer(producing());
  RawImporter liar(folder.path, "liar");
  std::thread answering([&] { liar.lie(); });
  const auto slept = producer.sleep(milliseconds(200));
  answering.join();
  ASSERT_FALSE(slept);
  EXPECT_NE(slept.error().message.find("importer liar"), std::string::npos);
}

TEST_F(PullSleepTest, ImporterWhoseConnectionBrokeIsAskedAboutAsLongAsItHoldsTheCache) {
  Engine producer(producing());
  {
    RawImporter broken(folder.path, "broken");
    broken.channel.shut_down();
    ASSERT_TRUE(gone_from(producer));
    const auto slept = producer.sleep(milliseconds(50));
    ASSERT_FALSE(slept);
    EXPECT_NE(slept.error().message.find("importer broken"), std::string::npos);
    Unmapping unmapping{.deadline = Clock::now() + milliseconds(20)};
    EXPECT_FALSE(producer.worker->release_kv_caches(unmapping)) << "still";
    ASSERT_TRUE(producer.after_map());
  }
  EXPECT_TRUE(producer.sleep());
}

TEST_F(PullSleepTest, WhereTheSystemCannotTellAnImporterIsBelievedOnlyAtItsWord) {
  Engine producer(producing());
  producer.hooks.sees_holders = false;
  RawImporter polite(folder.path, "polite");
  polite.say(encode_message(Revoked{1}));
  ASSERT_TRUE(gone_from(producer));
  ASSERT_TRUE(producer.sleep());
  producer.wake_up();
  RawImporter(folder.path, "broken").channel.shut_down();
  ASSERT_TRUE(gone_from(producer));
  const auto slept = producer.sleep(milliseconds(50));
  ASSERT_FALSE(slept);
  EXPECT_NE(slept.error().message.find("importer broken"), std::string::npos);
}

TEST_F(PullSleepTest, ConsumerThatSleepsGivesItsWord) {
  Engine producer(producing());
  producer.hooks.sees_holders = false;
  Engine consumer(consuming());
  EXPECT_EQ(consumer.load(1, producer.prefill(7, {3}, 4, 50), {4}, 4).output.failure, "");
  ASSERT_TRUE(consumer.sleep());
  ASSERT_TRUE(gone_from(producer));
  EXPECT_TRUE(producer.sleep());
}

TEST_F(PullSleepTest, DescriptorsThatNobodyHasReadArePinnedBytes) {
  Engine producer(producing());
  const RawImporter silent(folder.path, "mute", false);
  ASSERT_TRUE(eventually([&] { return producer.stat("kv_importers") == 1; }));
  Unmapping unmapping{.deadline = Clock::now() + milliseconds(50), .force = true};
  ASSERT_TRUE(producer.worker->release_kv_caches(unmapping));
  ASSERT_EQ(unmapping.kept.size(), 1U);
  EXPECT_GE(unmapping.kept[0].bytes, producer.cache.size());
}

TEST_F(PullSleepTest, AskingTheSystemBlocksNobody) {
  Engine producer(producing());
  RawImporter polite(folder.path, "polite");
  polite.say(encode_message(Revoked{1}));
  ASSERT_TRUE(gone_from(producer));
  std::atomic<bool> asking = false, answered = false;
  producer.hooks.before_census = [&] {
    asking = true;
    EXPECT_TRUE(eventually([&] { return answered.load(); }, std::chrono::seconds(2)));
  };
  polite.memory = {};
  std::thread sleeper([&] { EXPECT_TRUE(producer.sleep()); });
  ASSERT_TRUE(eventually([&] { return asking.load(); }));
  EXPECT_EQ(producer.stat("kv_importers"), 0);
  answered = true;
  sleeper.join();
}

TEST_F(PullSleepTest, PullOfWhoeverHasNotImportedIsRefusedAndCounted) {
  Engine producer(producing());
  const auto params = parse_transfer_params(producer.prefill(7, {3}, 4, 50), {4, kNumBlocks});
  const RemoteReference& from = params->remote;
  RawImporter importer(folder.path, "early");
  importer.say(encode_message(Revoked{1}));
  importer.say(encode_message(Pull{.name = from.name,
                                   .incarnation = from.incarnation,
                                   .generation = from.generation,
                                   .model_hash = "weights",
                                   .blocks = from.blocks},
                              2));
  EXPECT_EQ(type_of(importer.channel.receive(importer.deadline)->bytes), "refused");
  EXPECT_EQ(producer.stat("kv_references_refused_generation_total"), 1);
}

TEST_F(PullSleepTest, ForcedSleepReportsWhatIsPinned) {
  Engine producer(producing());
  const RawImporter silent(folder.path, "mute");
  const KvCaches caches = producer.caches();
  Unmapping unmapping{.deadline = Clock::now() + milliseconds(50), .force = true};
  ASSERT_TRUE(producer.worker->release_kv_caches(unmapping));
  ASSERT_EQ(unmapping.kept.size(), 1U);
  EXPECT_EQ(unmapping.kept[0].what, fmt::format("importer mute (pid {})", ::getpid()));
  EXPECT_EQ(unmapping.kept[0].bytes, held_here(producer, caches));
  EXPECT_GT(unmapping.kept[0].bytes, 0U);
  EXPECT_EQ(producer.stat("kv_registrations"), 0);
  EXPECT_EQ(producer.stat("kv_importers"), 0);
}

TEST_F(PullSleepTest, WakeUpCancelsASleepThatWaits) {
  Engine producer(producing());
  const RawImporter silent(folder.path, "mute");
  std::atomic<bool> cancelled = false;
  std::thread waking([&] {
    EXPECT_TRUE(eventually([&] { return producer.stat("kv_revocations_total") == 1; }));
    cancelled = true;
  });
  Unmapping unmapping{.deadline = Clock::now() + std::chrono::seconds(20), .cancelled = &cancelled};
  const Time began = Clock::now();
  const Status released = producer.worker->release_kv_caches(unmapping);
  waking.join();
  ASSERT_FALSE(released);
  EXPECT_EQ(released.error().code, ErrorCode::kCancelled);
  EXPECT_LT(Clock::now() - began, std::chrono::seconds(5));
}

TEST_F(PullSleepTest, WakeUpCancelsASleepThatWaitsForALoad) {
  Engine producer(producing());
  Engine consumer(consuming());
  HeldReads held(consumer);
  std::atomic<bool> cancelled = false;
  consumer.start(1, producer.prefill(7, {3}, 4, 50), {4}, 4);
  consumer.step();
  ASSERT_TRUE(held.begun());
  const auto release = [&] {
    Unmapping unmapping{.deadline = Clock::now() + std::chrono::seconds(5),
                        .cancelled = &cancelled};
    const Time began = Clock::now();
    const Status released = consumer.worker->release_kv_caches(unmapping);
    EXPECT_EQ(released.error().code, ErrorCode::kCancelled);
    return Clock::now() - began;
  };
  std::thread waking([&] {
    EXPECT_TRUE(stays([&] { return !cancelled; }, kGiveBackPatience));
    cancelled = true;
  });
  EXPECT_LT(release(), std::chrono::seconds(4)) << "while the mapping is in use";
  waking.join();
  EXPECT_LT(release(), milliseconds(400)) << "while owners are told";
  held.go_on();
  ASSERT_TRUE(consumer.after_map());
  consumer.finish(1);
}

TEST_F(PullSleepTest, ConsumerReturnsItsLeasesAndDropsItsMappings) {
  Engine producer(producing());
  Engine consumer(consuming());
  consumer.load(1, producer.prefill(7, {3}, 4, 50), {4}, 4);
  const std::string waiting = producer.prefill(8, {4}, 4, 60);
  const KvRequest request{.id = 2,
                          .tokens = {},
                          .prompt_length = 4,
                          .cache_salt = Engine::none,
                          .kv_transfer_params = waiting};
  consumer.scheduler->on_new_request(request);
  consumer.step();
  const KvCaches caches = producer.caches();
  EXPECT_GT(held_here(producer, caches), 0U);
  ASSERT_TRUE(consumer.sleep());
  EXPECT_EQ(held_here(producer, caches), 0U);
  EXPECT_TRUE(eventually([&] { return producer.stat("kv_importers") == 0; }));
  EXPECT_TRUE(eventually([&] { return producer.step(), producer.sent == RequestIds({7, 8}); }));
}

TEST_F(PullSleepTest, ConsumersSleepEndsALoadUnderWay) {
  Engine producer(producing());
  Engine consumer(consuming());
  HeldReads held(consumer);
  consumer.start(1, producer.prefill(7, {3}, 4, 50), {4}, 4);
  consumer.step();
  ASSERT_TRUE(held.begun());
  Unmapping unmapping{.deadline = Clock::now() + milliseconds(100), .force = true};
  const Status stuck = consumer.worker->release_kv_caches(unmapping);
  ASSERT_FALSE(stuck) << "it writes into the cache";
  EXPECT_EQ(stuck.error().code, ErrorCode::kDeadlineExceeded);
  ASSERT_TRUE(consumer.after_map());
  held.go_on();
  EXPECT_EQ(consumer.finish(1).invalid_block_ids, std::vector<BlockId>{4});
  ASSERT_TRUE(consumer.sleep());
  consumer.wake_up();
  EXPECT_EQ(consumer.load(2, producer.prefill(8, {3}, 4, 70), {4}, 4).output.failure, "");
  EXPECT_TRUE(consumer.holds(4, 70));
}

TEST_F(PullSleepTest, LoadsEndWhileAnImporterIsWaitedFor) {
  Engine source({.folder = folder.path, .name = "source", .port = 2});
  EngineOptions options = producing();
  options.peers = R"(["127.0.0.1:2"])";
  Engine both(options);
  const RawImporter silent(folder.path, "mute");
  std::atomic<bool> reading = false;
  both.hooks.during_read = [&](const ReadControl& control) {
    reading = true;
    EXPECT_TRUE(eventually([&] { return control.cancelled->load(); }));
    EXPECT_TRUE(stays([&] { return control.cancelled->load(); }, milliseconds(50)))
        << "what it takes to stop";
  };
  both.start(1, source.prefill(7, {3}, 4, 50), {4}, 4);
  both.step();
  ASSERT_TRUE(eventually([&] { return reading.load(); }));
  const auto slept = both.sleep(milliseconds(500), true);
  ASSERT_TRUE(slept) << slept.error().message;
}

TEST_F(PullSleepTest, LoadsIntoAMappingThatIsGoneAreToldToNobody) {
  Engine producer(producing());
  Engine consumer(consuming());
  consumer.start(1, producer.prefill(7, {3}, 4, 50), {4}, 4);
  consumer.worker->bind_connector_metadata(consumer.scheduler->build_connector_meta());
  consumer.worker->start_load_kv();
  ASSERT_TRUE(consumer.sleep());
  consumer.wake_up();
  const auto silent = [&] {
    const auto output = consumer.step();
    return output.finished_recving.empty() && output.invalid_block_ids.empty();
  };
  EXPECT_TRUE(stays(silent, milliseconds(30)));
}

TEST_F(PullSleepTest, BothSleepAtTheSameTime) {
  EngineOptions first = producing();
  first.peers = R"(["127.0.0.1:2"])";
  Engine a(first);
  Engine b(consuming());
  b.load(1, a.prefill(7, {3}, 4, 50), {4}, 4);
  EXPECT_EQ(a.load(1, b.prefill(8, {5}, 4, 60), {6}, 4).output.failure, "");
  std::thread other([&] { EXPECT_TRUE(a.sleep()); });
  EXPECT_TRUE(b.sleep());
  other.join();
  a.wake_up();
  b.wake_up();
  EXPECT_EQ(b.load(2, a.prefill(9, {3}, 4, 70), {4}, 4).output.failure, "");
  EXPECT_EQ(a.load(2, b.prefill(10, {5}, 4, 80), {6}, 4).output.failure, "");
  EXPECT_TRUE(b.holds(4, 70) && a.holds(6, 80));
}

TEST_F(PullSleepTest, RestoringTwiceChangesNothing) {
  Engine producer(producing());
  Engine consumer(consuming());
  const std::string params = producer.prefill(7, {3}, 4, 50);
  ASSERT_TRUE(producer.after_map());
  ASSERT_TRUE(producer.after_map());
  EXPECT_EQ(consumer.load(1, params, {4}, 4).output.failure, "");
}

}  // namespace
}  // namespace dormouse::pull

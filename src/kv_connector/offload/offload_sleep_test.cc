// What the OffloadingConnector does when the mapping goes and comes back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "device/host/host_copier.h"
#include "device/host/host_vmm_driver.h"
#include "kv_connector/offload/offload_fixture.h"
#include "memory/tagged_allocator.h"

namespace dormouse {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

void store_two(OffloadEngine& engine, RequestId id = 1) {
  TestRequest request = request_of(id, 9);
  engine.fill(1, 1);
  engine.fill(2, 2);
  ASSERT_TRUE(engine.finish(request, {1, 2, 3}).delay_free);
  engine.settle();
}

Unmapping until(std::chrono::milliseconds time) {
  return {.deadline = std::chrono::steady_clock::now() + time};
}

TEST(OffloadSleep, TheTierSurvives) {
  OffloadEngine engine(context_of("{}"));
  store_two(engine);
  for (int cycle = 0; cycle < 3; ++cycle) {
    engine.sleep_and_wake();
    EXPECT_EQ(engine.load(request_of(10 + static_cast<RequestId>(cycle), 9), {5, 6, 7}), 8U);
    EXPECT_THAT(engine.poll().invalid_block_ids, IsEmpty());
    EXPECT_TRUE(engine.holds(5, 1));
    EXPECT_TRUE(engine.holds(6, 2));
  }
}

TEST(OffloadSleep, DropsQueuedStoresAndReportsThem) {
  OffloadEngine engine(context_of("{}"));
  engine.close();
  TestRequest first = request_of(1, 4, 100);
  TestRequest second = request_of(2, 4, 200);
  EXPECT_TRUE(engine.finish(first, {1}).delay_free);
  EXPECT_TRUE(engine.finish(second, {2}).delay_free);
  engine.step();
  engine.wait_for(1);
  auto release = std::async(std::launch::async, [&engine] {
    Unmapping unmapping;
    return engine.follower().release_kv_caches(unmapping).has_value();
  });
  EXPECT_EQ(release.wait_for(50ms), std::future_status::timeout) << "a copy is in flight";
  engine.open();
  EXPECT_TRUE(release.get());
  EXPECT_EQ(engine.copied(), 1);
  const KvConnectorOutput output = engine.step();
  EXPECT_THAT(output.finished_sending, UnorderedElementsAre(1, 2));
  engine.settle();
  EXPECT_EQ(engine.stat("kv_offload_dropped_blocks_total"), 1);
  EXPECT_EQ(engine.matched(request_of(3, 4, 100)), 4U);
  EXPECT_EQ(engine.matched(request_of(4, 4, 200)), 0U);
}

TEST(OffloadSleep, FailsQueuedLoadsAndCutsShortThoseUnderWay) {
  OffloadEngine engine(context_of("{}"));
  store_two(engine);
  engine.close();
  EXPECT_EQ(engine.load(request_of(2, 9), {5, 6, 7}), 8U);
  EXPECT_EQ(engine.load(request_of(3, 9), {8, 9, 10}), 8U);
  engine.step();
  engine.wait_for(3);
  auto release = std::async(std::launch::async, [&engine] {
    Unmapping unmapping;
    return engine.follower().release_kv_caches(unmapping).has_value();
  });
  EXPECT_EQ(release.wait_for(50ms), std::future_status::timeout) << "a copy is in flight";
  engine.open();
  EXPECT_TRUE(release.get());
  RequestIds ended;
  std::vector<BlockId> invalid;
  while (ended.size() < 2) {
    const KvConnectorOutput output = engine.poll();
    ended.insert(ended.end(), output.finished_recving.begin(), output.finished_recving.end());
    invalid.insert(invalid.end(), output.invalid_block_ids.begin(), output.invalid_block_ids.end());
    EXPECT_THAT(output.failure, HasSubstr("OffloadingConnector: the KV cache was released"));
  }
  EXPECT_THAT(ended, UnorderedElementsAre(2, 3));
  EXPECT_THAT(invalid, UnorderedElementsAre(6, 8, 9));
  EXPECT_EQ(engine.copied(), 3);
}

TEST(OffloadSleep, AStoreThatCannotBeginInTimeGivesItsBlocksBack) {
  OffloadEngine engine(context_of(R"({"transfer_timeout":0.2})"));
  engine.close();
  TestRequest first = request_of(1, 8, 100);
  TestRequest second = request_of(2, 4, 200);
  EXPECT_TRUE(engine.finish(first, {1, 2}).delay_free);
  EXPECT_TRUE(engine.finish(second, {3}).delay_free);
  EXPECT_THAT(engine.poll().finished_sending, ElementsAre(2)) << "nobody touches its block";
  engine.open();
  EXPECT_THAT(engine.poll().finished_sending, ElementsAre(1)) << "not before its copy is over";
  engine.settle();
  EXPECT_EQ(engine.stat("kv_offload_stored_blocks_total"), 1);
  EXPECT_EQ(engine.stat("kv_offload_dropped_blocks_total"), 2);
}

TEST(OffloadSleep, AReleaseThatTakesTooLongFailsByNameAndLosesNothing) {
  OffloadEngine engine(context_of("{}"));
  engine.close();
  TestRequest request = request_of(1, 9);
  engine.fill(1, 1);
  engine.fill(2, 2);
  EXPECT_TRUE(engine.finish(request, {1, 2, 3}).delay_free);
  engine.step();
  engine.wait_for(1);
  for (const bool force : {false, true}) {
    Unmapping unmapping = until(10ms);
    unmapping.force = force;
    const Status released = engine.follower().release_kv_caches(unmapping);
    ASSERT_FALSE(released);
    EXPECT_EQ(released.error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_THAT(released.error().message, HasSubstr("OffloadingConnector: 1 copies"));
    EXPECT_THAT(unmapping.kept, IsEmpty());
    EXPECT_TRUE(engine.follower().restore_kv_caches(engine.caches()));
  }
  engine.open();
  EXPECT_THAT(engine.poll().finished_sending, ElementsAre(1));
  EXPECT_EQ(engine.load(request_of(2, 9), {5, 6, 7}), 8U);
  engine.settle();
  EXPECT_TRUE(engine.holds(5, 1));
  EXPECT_TRUE(engine.holds(6, 2));
}

TEST(OffloadSleep, AJobOfAnOldGenerationNeverTouchesTheCache) {
  OffloadEngine engine(context_of("{}"));
  store_two(engine);
  TestRequest stale = request_of(2, 9, 500);
  EXPECT_TRUE(engine.finish(stale, {3, 4, 5}).delay_free);
  EXPECT_EQ(engine.load(request_of(3, 9), {6, 7, 8}), 8U);
  // The jobs were made before the sleep, and the workers hear of them after it.
  const int copied = engine.copied();
  engine.sleep_and_wake();
  const KvConnectorOutput output = engine.step();
  EXPECT_THAT(output.finished_sending, ElementsAre(2));
  EXPECT_THAT(output.finished_recving, ElementsAre(3));
  EXPECT_THAT(output.invalid_block_ids, ElementsAre(6, 7));
  engine.settle();
  EXPECT_EQ(engine.copied(), copied);
  EXPECT_EQ(engine.matched(request_of(4, 9, 500)), 0U);
  for (const std::byte each : engine.cache)
    ASSERT_EQ(each, std::byte{0x5A});
  EXPECT_EQ(engine.matched(request_of(5, 9)), 8U);
}

TEST(OffloadSleep, NothingIsSaidOfBlocksOfAnOlderMapping) {
  OffloadEngine engine(context_of("{}"));
  store_two(engine);
  EXPECT_EQ(engine.load(request_of(2, 9), {6, 7, 8}), 8U);
  engine.close();
  engine.worker->bind_connector_metadata(engine.scheduler->build_connector_meta());
  engine.worker->start_load_kv();
  engine.wait_for(3);
  auto cycle = std::async(std::launch::async, [&engine] { engine.sleep_and_wake(); });
  EXPECT_EQ(cycle.wait_for(50ms), std::future_status::timeout) << "a copy is in flight";
  engine.open();
  cycle.get();
  EXPECT_THAT(engine.step().invalid_block_ids, IsEmpty());
  engine.settle();
  EXPECT_FALSE(engine.scheduler->has_pending_work());
}

TEST(OffloadSleep, TheReceiptSaysWhatTheTierKeeps) {
  OffloadEngine engine(context_of("{}"));
  Unmapping unmapping;
  EXPECT_TRUE(engine.follower().release_kv_caches(unmapping));
  EXPECT_THAT(unmapping.kept, IsEmpty()) << "it holds nothing yet";
  EXPECT_TRUE(engine.follower().restore_kv_caches(engine.caches()));
  store_two(engine);
  EXPECT_TRUE(engine.follower().release_kv_caches(unmapping));
  ASSERT_EQ(unmapping.kept.size(), 1U);
  EXPECT_EQ(unmapping.kept[0].bytes, 2 * engine.shape.block_bytes());
  EXPECT_TRUE(engine.follower().restore_kv_caches(engine.caches()));
}

TEST(OffloadSleep, AWakeUpCancelsTheWait) {
  OffloadEngine engine(context_of("{}"));
  engine.close();
  TestRequest request = request_of(1, 9);
  EXPECT_TRUE(engine.finish(request, {1, 2, 3}).delay_free);
  engine.step();
  engine.wait_for(1);
  const std::atomic<bool> cancelled = true;
  Unmapping unmapping{.cancelled = &cancelled};
  const Status released = engine.follower().release_kv_caches(unmapping);
  ASSERT_FALSE(released);
  EXPECT_EQ(released.error().code, ErrorCode::kCancelled);
  EXPECT_TRUE(engine.follower().restore_kv_caches(engine.caches()));
  engine.open();
}

TEST(OffloadSleep, MayBeReleasedTwiceAndRestoredTwice) {
  OffloadEngine engine(context_of("{}"));
  Unmapping unmapping;
  EXPECT_TRUE(engine.follower().release_kv_caches(unmapping));
  EXPECT_TRUE(engine.follower().release_kv_caches(unmapping));
  EXPECT_TRUE(engine.follower().restore_kv_caches(engine.caches()));
  EXPECT_TRUE(engine.follower().restore_kv_caches(engine.caches()));
  store_two(engine);
  EXPECT_EQ(engine.matched(request_of(2, 9)), 8U);
}

// The memory is really gone, and other pages are behind the addresses afterwards.
TEST(OffloadSleep, FollowsARealMapping) {
  const KvConnectorContext context = context_of("{}");
  HostVmmDriver driver;
  HostCopier copier(1);
  TaggedAllocator allocator(driver, copier, {.block_bytes = std::size_t{2} << 20});
  const TaggedMemory memory =
      *allocator.allocate(kKvCacheTag, context.num_blocks * context.shape.block_bytes());
  struct Listener final : MappingListener {
    FollowsMapping* follower = nullptr;
    KvCaches caches;
    Status before_unmap(Unmapping& unmapping) override {
      return follower->release_kv_caches(unmapping);
    }
    Status after_map() override {
      ++caches.generation;
      return follower->restore_kv_caches(caches);
    }
  } listener;
  auto scheduler = *OffloadScheduler::create(context);
  auto worker = *OffloadWorker::create(context);
  listener.follower = worker.get();
  listener.caches = {.bytes = memory.bytes(), .generation = 1};
  ASSERT_TRUE(worker->register_kv_caches(listener.caches));
  scheduler->set_xfer_handshake_metadata({worker->get_handshake_metadata()});
  const MappingSubscription subscription = allocator.subscribe(kKvCacheTag, listener);
  const auto step_until_idle = [&] {
    while (scheduler->has_pending_work()) {
      worker->bind_connector_metadata(scheduler->build_connector_meta());
      worker->start_load_kv();
      KvConnectorOutput output;
      worker->get_finished({}, output);
      output.worker_meta = worker->build_connector_worker_meta();
      scheduler->update_connector_output(output);
      std::this_thread::yield();
    }
  };
  std::memset(memory.data(), 0x33, memory.size());
  TestRequest request = request_of(1, 8);
  scheduler->on_new_request(request.view());
  request.num_computed = 8;
  const std::vector<BlockId> blocks = {1, 2};
  ASSERT_TRUE(scheduler->request_finished(request.view(), blocks).delay_free);
  step_until_idle();

  ASSERT_TRUE(allocator.sleep({}));
  ASSERT_TRUE(allocator.wake_up(std::nullopt));
  scheduler->set_xfer_handshake_metadata({worker->get_handshake_metadata()});
  ASSERT_EQ(memory.data()[0], std::byte{0}) << "fresh pages";
  const TestRequest again = request_of(2, 8);
  scheduler->on_new_request(again.view());
  ASSERT_EQ(scheduler->get_num_new_matched_tokens(again.view(), 0)->tokens, 8U);
  scheduler->update_state_after_alloc(again.view(), blocks, 8);
  step_until_idle();
  const std::size_t block_bytes = context.shape.block_bytes();
  EXPECT_EQ(memory.data()[block_bytes - 1], std::byte{0});
  EXPECT_EQ(memory.data()[block_bytes], std::byte{0x33});
  EXPECT_EQ(memory.data()[3 * block_bytes - 1], std::byte{0x33});
  EXPECT_EQ(memory.data()[3 * block_bytes], std::byte{0});
}

}  // namespace
}  // namespace dormouse

#include "memory/tagged_allocator.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "memory/allocator_fixture.h"
#include "testing/host_memory.h"

namespace dormouse {
namespace {

TEST_F(TaggedAllocatorTest, AFailedReleaseLeavesEverythingMappedAndRestoresTheOthers) {
  CountingListener willing("willing", journal_, nullptr);
  CountingListener refusing("refusing", journal_, nullptr);
  refusing.refuse_release = true;
  const auto one = allocator_.subscribe(kKvCacheTag, willing);
  const auto two = allocator_.subscribe(kWeightsTag, refusing);
  const auto unmaps = driver_.unmaps();
  const auto receipt = allocator_.sleep({kWeightsTag});
  ASSERT_FALSE(receipt);
  EXPECT_EQ(receipt.error().message, "cannot release refusing");
  EXPECT_EQ(driver_.unmaps(), unmaps);
  EXPECT_EQ(willing.registered, 1);
  EXPECT_TRUE(allocator_.all_restored());
  EXPECT_EQ(allocator_.usage().at("weights").backed_up, 0U);
  EXPECT_TRUE(holds(weights_, 1));
  EXPECT_TRUE(holds(cache_, 2));
}

TEST_F(TaggedAllocatorTest, ARestoreThatFailsAfterAFailedReleaseIsToldAndTriedAgain) {
  CountingListener willing("willing", journal_, nullptr);
  CountingListener refusing("refusing", journal_, nullptr);
  willing.refuse_restore = true;
  refusing.refuse_release = true;
  const auto one = allocator_.subscribe(kKvCacheTag, willing);
  const auto two = allocator_.subscribe(kWeightsTag, refusing);
  const auto receipt = allocator_.sleep({kWeightsTag});
  ASSERT_FALSE(receipt);
  EXPECT_EQ(receipt.error().message,
            "cannot release refusing; restoring failed too: cannot restore willing");
  EXPECT_FALSE(allocator_.all_restored());
  willing.refuse_restore = false;
  ASSERT_TRUE(allocator_.wake_up(std::nullopt));
  EXPECT_TRUE(allocator_.all_restored());
  EXPECT_EQ(willing.registered, 1);
}

TEST_F(TaggedAllocatorTest, AFailedRestoreIsTriedAgainByTheNextWakeUp) {
  CountingListener listener("kv", journal_, nullptr);
  const auto subscription = allocator_.subscribe(kKvCacheTag, listener);
  ASSERT_TRUE(allocator_.sleep({kWeightsTag}));
  listener.refuse_restore = true;
  EXPECT_EQ(allocator_.wake_up(std::nullopt).error().message, "cannot restore kv");
  EXPECT_FALSE(allocator_.all_restored());
  EXPECT_TRUE(allocator_.is_mapped(kKvCacheTag));
  listener.refuse_restore = false;
  ASSERT_TRUE(allocator_.wake_up(std::nullopt));
  EXPECT_TRUE(allocator_.all_restored());
  EXPECT_EQ(listener.registered, 1);
}

TEST_F(TaggedAllocatorTest, AFailedWakeUpRollsBackAndKeepsEveryBackup) {
  ASSERT_TRUE(allocator_.sleep({kWeightsTag}));
  faults_.fail_at(7);  // into the mapping of the second allocation
  ASSERT_FALSE(allocator_.wake_up(std::nullopt));
  ASSERT_TRUE(faults_.fired());
  faults_.fail_at(-1);
  EXPECT_EQ(driver_.tracked_bytes(), 0U);
  EXPECT_EQ(driver_.mapped_bytes(), 0U);
  EXPECT_EQ(allocator_.usage().at("weights").backed_up, weights_.size());
  ASSERT_TRUE(allocator_.wake_up(std::nullopt));
  EXPECT_TRUE(holds(weights_, 1));
}

TEST_F(TaggedAllocatorTest, TooLittleHostMemoryIsFoundBeforeAnythingHappens) {
  CountingListener listener("kv", journal_, nullptr);
  for (const bool by_limit : {true, false}) {
    journal_.clear();
    TaggedAllocator poor(driver_, copier_,
                         {.host_memory_limit = by_limit ? kMiB : 0,
                          .available_host_memory = [] { return Result<std::uint64_t>(kMiB); }});
    TaggedMemory memory = std::move(*poor.allocate(kWeightsTag, 3 * kMiB));
    const auto subscription = poor.subscribe(kWeightsTag, listener);
    const auto receipt = poor.sleep({kWeightsTag});
    ASSERT_FALSE(receipt);
    EXPECT_EQ(receipt.error().code, ErrorCode::kResourceExhausted);
    EXPECT_TRUE(journal_.empty());
    EXPECT_TRUE(poor.is_mapped(kWeightsTag));
    ASSERT_TRUE(poor.sleep({})) << "without a backup it must work";
  }
}

TEST_F(TaggedAllocatorTest, ASourceBringsTheBytesBackAndIsCheckedByHash) {
  {
    const auto lease = allocator_.lease_for_writing(kWeightsTag);
    ASSERT_TRUE(lease);
  }
  int seed = 1;
  ASSERT_TRUE(allocator_.seal(kWeightsTag, [&]() -> Status {
    std::memset(weights_.data(), 0, weights_.size());
    fill(weights_, seed);
    return {};
  }));
  ASSERT_TRUE(allocator_.lease_for_writing(kWeightsTag)) << "a lease writes nothing by itself";
  {
    const auto lease = allocator_.lease_for_writing(kWeightsTag);
    std::memset(weights_.data(), 0, weights_.size());
    fill(weights_, seed);
  }
  ASSERT_TRUE(allocator_.sleep({kWeightsTag}));
  EXPECT_EQ(allocator_.usage().at("weights").backed_up, 0U);
  seed = 9;
  const auto changed = allocator_.wake_up(std::nullopt);
  ASSERT_FALSE(changed);
  EXPECT_EQ(changed.error().code, ErrorCode::kDataLoss);
  EXPECT_EQ(driver_.mapped_bytes(), 0U);
  seed = 1;
  ASSERT_TRUE(allocator_.wake_up(std::nullopt));
  EXPECT_TRUE(holds(weights_, 1));
}

TEST_F(TaggedAllocatorTest, ACancelledSleepLeavesEverythingAsItWas) {
  std::atomic<bool> cancelled = false;
  CountingListener listener("kv", journal_, nullptr);
  const auto subscription = allocator_.subscribe(kKvCacheTag, listener);
  const TransitionControl control{
      .cancelled = &cancelled,
      .progress = [&](std::string_view, std::uint64_t, std::uint64_t) { cancelled = true; }};
  const auto receipt = allocator_.sleep({kWeightsTag}, control);
  ASSERT_FALSE(receipt);
  EXPECT_EQ(receipt.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(copier_.bytes_out, 2 * kMiB) << "it stops at the next block";
  EXPECT_TRUE(journal_.empty());
  EXPECT_TRUE(holds(weights_, 1));
  EXPECT_EQ(allocator_.usage().at("weights").backed_up, 0U);
}

TEST_F(TaggedAllocatorTest, ASleepThatHasNothingToCopyCanBeCancelledToo) {
  const std::atomic<bool> cancelled = true;
  CountingListener listener("kv", journal_, nullptr);
  const auto subscription = allocator_.subscribe(kKvCacheTag, listener);
  const auto receipt = allocator_.sleep({}, {.cancelled = &cancelled});
  ASSERT_FALSE(receipt);
  EXPECT_EQ(receipt.error().code, ErrorCode::kCancelled);
  EXPECT_TRUE(journal_.empty());
  EXPECT_TRUE(holds(cache_, 2));
}

TEST_F(TaggedAllocatorTest, WhatTheDriverRefusesIsRecordedAndTriedAgain) {
  RefusingDriver refusing(driver_);
  TaggedAllocator allocator(refusing, copier_, options());
  TaggedMemory memory = std::move(*allocator.allocate(kWeightsTag, 4 * kMiB));
  fill(memory, 4);
  refusing.refuse = true;
  const auto receipt = allocator.sleep({kWeightsTag});
  ASSERT_TRUE(receipt) << "commit cannot fail";
  EXPECT_EQ(allocator.usage().at("weights").leaked, 4 * kMiB);
  ASSERT_FALSE(allocator.wake_up(std::nullopt)) << "memory is still held";
  refusing.refuse = false;
  ASSERT_TRUE(allocator.wake_up(std::nullopt));
  EXPECT_EQ(allocator.usage().at("weights").leaked, 0U);
  EXPECT_TRUE(holds(memory, 4));
}

TEST_F(TaggedAllocatorTest, ASleepTriesAgainToGiveBackWhatWasRefused) {
  RefusingDriver refusing(driver_);
  TaggedAllocator allocator(refusing, copier_, options());
  const TaggedMemory memory = std::move(*allocator.allocate(kWeightsTag, 4 * kMiB));
  refusing.refuse = true;
  ASSERT_TRUE(allocator.sleep({kWeightsTag}));
  refusing.refuse = false;
  ASSERT_TRUE(allocator.sleep({kWeightsTag}));
  EXPECT_EQ(allocator.usage().at("weights").leaked, 0U);
}

TEST_F(TaggedAllocatorTest, EveryFailurePointOfTwoCyclesIsRecoveredByOneMoreWakeUp) {
  std::deque<CountingListener> listeners;
  std::vector<MappingSubscription> subscriptions;
  for (const char* name : {"first", "second"}) {
    listeners.emplace_back(name, journal_, &faults_);
    subscriptions.push_back(allocator_.subscribe(kKvCacheTag, listeners.back()));
  }
  driver_.before_unmap = [&] {
    for (const CountingListener& listener : listeners)
      EXPECT_TRUE(listener.registered == 0 || faults_.fired());
  };
  std::int64_t points = 0;
  for (;; ++points) {
    faults_.fail_at(points);
    for (int cycle = 0; cycle < 2; ++cycle) {
      (void)allocator_.sleep({kWeightsTag});
      (void)allocator_.wake_up(std::nullopt);
      allocator_.drop_used_backups();
    }
    const bool fired = faults_.fired();
    faults_.fail_at(-1);
    ASSERT_TRUE(allocator_.wake_up(std::nullopt)) << "after failure point " << points;
    ASSERT_TRUE(holds(weights_, 1)) << "after failure point " << points;
    ASSERT_TRUE(allocator_.all_restored());
    for (const CountingListener& listener : listeners)
      ASSERT_EQ(listener.registered, 1);
    ASSERT_EQ(driver_.tracked_bytes(), 8 * kMiB);
    ASSERT_EQ(driver_.mapped_bytes(), 8 * kMiB);
    for (const auto& [tag, usage] : allocator_.usage())
      ASSERT_EQ(usage.leaked, 0U);
    if (!fired)
      break;
  }
  EXPECT_GT(points, 50);
}

// The address sanitizer holds freed memory and ended threads back for a while.
#ifdef __SANITIZE_ADDRESS__
constexpr std::uint64_t kResidentSlack = 64 * kMiB;
#else
constexpr std::uint64_t kResidentSlack = 8 * kMiB;
#endif

TEST_F(TaggedAllocatorTest, RandomCyclesLeaveNothingBehind) {
  std::mt19937 random(7);
  const auto descriptors = block_references()->descriptors;
  std::uint64_t resident = 0;  // once the first cycles have taken what they keep
  for (int cycle = 0; cycle < 200; ++cycle) {
    if (cycle == 20)
      resident = *resident_memory();
    switch (random() % 4) {
      case 0:
        ASSERT_TRUE(allocator_.discard({kKvCacheTag}));
        break;
      case 1:
        ASSERT_TRUE(allocator_.discard({kKvCacheTag}));
        [[fallthrough]];
      default:
        ASSERT_TRUE(allocator_.sleep({kWeightsTag}));
    }
    if (random() % 2 == 0) {
      ASSERT_TRUE(allocator_.wake_up(std::vector{random() % 2 == 0 ? kWeightsTag : kKvCacheTag}));
    }
    ASSERT_TRUE(allocator_.wake_up(std::nullopt));
    allocator_.drop_used_backups();
  }
  EXPECT_TRUE(holds(weights_, 1));
  EXPECT_EQ(driver_.tracked_bytes(), 8 * kMiB);
  EXPECT_EQ(block_references()->descriptors, descriptors);
  EXPECT_LT(*resident_memory(), resident + kResidentSlack) << "one backup of 3 MiB is retained";
}

}  // namespace
}  // namespace dormouse

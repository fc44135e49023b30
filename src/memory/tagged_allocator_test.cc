#include "memory/tagged_allocator.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <random>

#include "device/host/host_copier.h"
#include "device/host/host_memory.h"
#include "device/host/host_vmm_driver.h"
#include "testing/faulty_copier.h"
#include "testing/instrumented_vmm_driver.h"
#include "testing/vmm_driver_decorator.h"

namespace dormouse {
namespace {

using testing::FaultPlan;
using testing::FaultyCopier;
using testing::InstrumentedVmmDriver;

constexpr std::size_t kMiB = std::size_t{1} << 20;

// Registers the tag's memory as a transport would: it counts, and knows whether it may exist.
class CountingListener final : public MappingListener {
 public:
  CountingListener(std::string name, std::vector<std::string>& journal, FaultPlan* faults)
      : name_(std::move(name)), journal_(journal), faults_(faults) {}

  Status before_unmap() override {
    journal_.push_back("before " + name_);
    if (faults_)
      DM_TRY(faults_->check("before_unmap"));
    if (refuse_release)
      return fail(ErrorCode::kInternal, "cannot release " + name_);
    registered = 0;
    return {};
  }
  Status after_map() override {
    journal_.push_back("after " + name_);
    if (faults_)
      DM_TRY(faults_->check("after_map"));
    if (refuse_restore)
      return fail(ErrorCode::kInternal, "cannot restore " + name_);
    registered = 1;
    return {};
  }

  bool refuse_release = false;
  bool refuse_restore = false;
  int registered = 1;

 private:
  std::string name_;
  std::vector<std::string>& journal_;
  FaultPlan* faults_;
};

// Takes blocks back only when it likes.
struct RefusingDriver final : testing::VmmDriverDecorator {
  using VmmDriverDecorator::VmmDriverDecorator;
  bool refuse = false;
  Status release(BlockHandle block) override {
    if (refuse)
      return fail(ErrorCode::kInternal, "busy");
    return inner.release(block);
  }
};

class TaggedAllocatorTest : public ::testing::Test {
 protected:
  static TaggedAllocator::Options options() {
    return {.block_bytes = 2 * kMiB, .available_host_memory = {}};
  }

  void SetUp() override {
    weights_ = std::move(*allocator_.allocate(kWeightsTag, 3 * kMiB + 100));
    cache_ = std::move(*allocator_.allocate(kKvCacheTag, 4 * kMiB));
    fill(weights_, 1);
    ASSERT_TRUE(allocator_.seal(kWeightsTag));
    fill(cache_, 2);
    driver_.poison = std::byte{0xA5};
  }

  void TearDown() override { driver_.before_unmap = nullptr; }

  static void fill(const TaggedMemory& memory, int seed) {
    for (std::size_t i = 0; i < memory.size(); i += 64)
      memory.data()[i] = static_cast<std::byte>(i / 64 * 7 + static_cast<std::size_t>(seed));
  }
  static bool holds(const TaggedMemory& memory, int seed) {
    for (std::size_t i = 0; i < memory.size(); i += 64)
      if (memory.data()[i] != static_cast<std::byte>(i / 64 * 7 + static_cast<std::size_t>(seed)))
        return false;
    return true;
  }

  HostVmmDriver host_;
  FaultPlan faults_;
  InstrumentedVmmDriver driver_{host_, &faults_};
  HostCopier plain_copier_{2};
  FaultyCopier copier_{plain_copier_, &faults_};
  TaggedAllocator allocator_{driver_, copier_, options()};
  TaggedMemory weights_;
  TaggedMemory cache_;
  std::vector<std::string> journal_;
};

TEST_F(TaggedAllocatorTest, WeightsComeBackAtTheSameAddressOnOtherPages) {
  const std::byte* address = weights_.data();
  const UniqueFd old_block = *driver_.export_block(allocator_.blocks_of(weights_)[0]);
  ASSERT_TRUE(allocator_.sleep({kWeightsTag}));
  EXPECT_EQ(driver_.tracked_bytes(), 0U);
  EXPECT_EQ(driver_.mapped_bytes(), 0U);
  ASSERT_TRUE(allocator_.wake_up(std::nullopt));
  EXPECT_EQ(weights_.data(), address);
  EXPECT_TRUE(holds(weights_, 1));
  EXPECT_FALSE(holds(cache_, 2)) << "the cache was dropped, yet its old bytes are there";
}

TEST_F(TaggedAllocatorTest, TheReceiptAgreesWithTheSystem) {
  const auto shared_before = *shared_memory_in_use();
  const auto receipt = allocator_.sleep({kWeightsTag});
  ASSERT_TRUE(receipt);
  EXPECT_EQ(receipt->expected_freed, 8 * kMiB);
  EXPECT_EQ(receipt->measured_freed, static_cast<std::int64_t>(8 * kMiB));
  EXPECT_LT(*shared_memory_in_use(), shared_before - 7 * kMiB);
  EXPECT_EQ(receipt->tags.at("weights").copied_out, weights_.size());
  EXPECT_EQ(receipt->tags.at("weights").backup_kept, weights_.size());
  EXPECT_EQ(receipt->tags.at("kv_cache").backup_kept, 0U);
  std::string phases;
  for (const auto& [name, ms] : receipt->phases_ms)
    phases += name + " ";
  EXPECT_EQ(phases, "preflight backup hooks unmap ");
}

TEST_F(TaggedAllocatorTest, UnmodifiedWeightsAreCopiedOutOnce) {
  for (int cycle = 0; cycle < 3; ++cycle) {
    ASSERT_TRUE(allocator_.sleep({kWeightsTag}));
    ASSERT_TRUE(allocator_.wake_up(std::nullopt));
    allocator_.drop_used_backups();
  }
  EXPECT_EQ(copier_.bytes_out, weights_.size());
  EXPECT_EQ(copier_.bytes_in, 3 * weights_.size());
}

TEST_F(TaggedAllocatorTest, AWriteLeaseMakesTheRetainedBackupGoAway) {
  ASSERT_TRUE(allocator_.sleep({kWeightsTag}));
  ASSERT_TRUE(allocator_.wake_up(std::nullopt));
  {
    const auto lease = allocator_.lease_for_writing(kWeightsTag);
    ASSERT_TRUE(lease);
    fill(weights_, 5);
  }
  ASSERT_TRUE(allocator_.sleep({kWeightsTag}));
  ASSERT_TRUE(allocator_.wake_up(std::nullopt));
  EXPECT_TRUE(holds(weights_, 5)) << "an old backup brought the old model back";
}

TEST_F(TaggedAllocatorTest, SealedWeightsCannotBeWrittenBeforeOrAfterAWakeUp) {
  EXPECT_DEATH(weights_.data()[0] = std::byte{0}, "");
  ASSERT_TRUE(allocator_.sleep({kWeightsTag}));
  ASSERT_TRUE(allocator_.wake_up(std::nullopt));
  EXPECT_DEATH(weights_.data()[0] = std::byte{0}, "");
}

TEST_F(TaggedAllocatorTest, WritableMemoryIsCopiedOutEveryTime) {
  ASSERT_TRUE(allocator_.sleep({kWeightsTag, kKvCacheTag}));
  ASSERT_TRUE(allocator_.wake_up(std::nullopt));
  EXPECT_TRUE(holds(cache_, 2));
  fill(cache_, 3);
  ASSERT_TRUE(allocator_.sleep({kWeightsTag, kKvCacheTag}));
  ASSERT_TRUE(allocator_.wake_up(std::nullopt));
  EXPECT_TRUE(holds(cache_, 3));
}

TEST_F(TaggedAllocatorTest, HooksRunBeforeTheFirstUnmapAndAfterTheLastMap) {
  CountingListener listener("kv", journal_, nullptr);
  const auto subscription = allocator_.subscribe(kKvCacheTag, listener);
  driver_.before_unmap = [&] { EXPECT_EQ(listener.registered, 0) << "pinned at the unmap"; };
  ASSERT_TRUE(allocator_.sleep({kWeightsTag}));
  EXPECT_EQ(journal_, std::vector<std::string>{"before kv"});
  const auto maps_before = driver_.maps();
  ASSERT_TRUE(allocator_.wake_up(std::nullopt));
  EXPECT_EQ(driver_.maps(), maps_before + 4);
  EXPECT_EQ(journal_, (std::vector<std::string>{"before kv", "after kv"}));
}

TEST_F(TaggedAllocatorTest, EveryTagIsReleasedBeforeAnyTagIsUnmapped) {
  CountingListener first("weights", journal_, nullptr);
  CountingListener second("kv", journal_, nullptr);
  const auto one = allocator_.subscribe(kWeightsTag, first);
  const auto two = allocator_.subscribe(kKvCacheTag, second);
  driver_.before_unmap = [&] { EXPECT_EQ(first.registered + second.registered, 0); };
  ASSERT_TRUE(allocator_.sleep({kWeightsTag}));
  ASSERT_TRUE(allocator_.wake_up(std::nullopt));
}

TEST_F(TaggedAllocatorTest, ATagWithoutMappedMemoryIsNotReleasedAgain) {
  CountingListener listener("kv", journal_, nullptr);
  const auto subscription = allocator_.subscribe(kKvCacheTag, listener);
  ASSERT_TRUE(allocator_.discard({kKvCacheTag}));
  ASSERT_TRUE(allocator_.sleep({kWeightsTag}));
  EXPECT_EQ(journal_, std::vector<std::string>{"before kv"});
}

TEST_F(TaggedAllocatorTest, DiscardReleasesOnlyItsOwnTags) {
  CountingListener weights("weights", journal_, nullptr);
  CountingListener cache("kv", journal_, nullptr);
  const auto one = allocator_.subscribe(kWeightsTag, weights);
  const auto two = allocator_.subscribe(kKvCacheTag, cache);
  ASSERT_TRUE(allocator_.discard({kKvCacheTag}));
  EXPECT_EQ(journal_, std::vector<std::string>{"before kv"});
  EXPECT_TRUE(allocator_.is_mapped(kWeightsTag));
  EXPECT_FALSE(allocator_.is_mapped(kKvCacheTag));
}

TEST_F(TaggedAllocatorTest, AfterMapRunsOnlyForTagsWhollyMapped) {
  CountingListener weights("weights", journal_, nullptr);
  CountingListener cache("kv", journal_, nullptr);
  const auto one = allocator_.subscribe(kWeightsTag, weights);
  const auto two = allocator_.subscribe(kKvCacheTag, cache);
  ASSERT_TRUE(allocator_.sleep({kWeightsTag}));
  journal_.clear();
  ASSERT_TRUE(allocator_.wake_up(std::vector{kWeightsTag}));
  EXPECT_EQ(journal_, std::vector<std::string>{"after weights"});
  ASSERT_TRUE(allocator_.wake_up(std::vector{kKvCacheTag}));
  EXPECT_EQ(journal_, (std::vector<std::string>{"after weights", "after weights", "after kv"}));
}

TEST_F(TaggedAllocatorTest, AfterMapWaitsForEveryAllocationOfItsTag) {
  CountingListener listener("kv", journal_, nullptr);
  const auto subscription = allocator_.subscribe(kKvCacheTag, listener);
  ASSERT_TRUE(allocator_.sleep({kWeightsTag}));
  const TaggedMemory more = std::move(*allocator_.allocate(kKvCacheTag, kMiB));
  journal_.clear();
  ASSERT_TRUE(allocator_.wake_up(std::vector{kWeightsTag}));
  EXPECT_TRUE(journal_.empty()) << "half of the tag is asleep";
  ASSERT_TRUE(allocator_.wake_up(std::nullopt));
  EXPECT_EQ(journal_, std::vector<std::string>{"after kv"});
}

TEST_F(TaggedAllocatorTest, AfterMapFindsTheBytesBack) {
  struct Reader final : MappingListener {
    std::function<bool()> look;
    bool found = false;
    Status before_unmap() override { return {}; }
    Status after_map() override {
      found = look();
      return {};
    }
  } reader;
  reader.look = [&] { return holds(weights_, 1); };
  const auto subscription = allocator_.subscribe(kWeightsTag, reader);
  ASSERT_TRUE(allocator_.sleep({kWeightsTag}));
  ASSERT_TRUE(allocator_.wake_up(std::nullopt));
  EXPECT_TRUE(reader.found);
}

TEST_F(TaggedAllocatorTest, AfterMapRunsAlsoWhenAWakeUpMapsNothing) {
  CountingListener listener("kv", journal_, nullptr);
  const auto subscription = allocator_.subscribe(kKvCacheTag, listener);
  ASSERT_TRUE(allocator_.wake_up(std::nullopt));
  EXPECT_EQ(journal_, std::vector<std::string>{"after kv"});
}

TEST_F(TaggedAllocatorTest, AnEndedSubscriptionIsNotCalled) {
  CountingListener listener("kv", journal_, nullptr);
  { const auto subscription = allocator_.subscribe(kKvCacheTag, listener); }
  ASSERT_TRUE(allocator_.sleep({}));
  ASSERT_TRUE(allocator_.wake_up(std::nullopt));
  EXPECT_TRUE(journal_.empty());
}

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

TEST_F(TaggedAllocatorTest, BackupsStayUntilTheWakeUpIsCommittedEverywhere) {
  TaggedAllocator releasing(driver_, copier_, {.block_bytes = 4 * kMiB, .retain_backups = false});
  TaggedMemory memory = std::move(*releasing.allocate(kWeightsTag, kMiB));
  ASSERT_TRUE(releasing.seal(kWeightsTag));
  ASSERT_TRUE(releasing.sleep({kWeightsTag}));
  ASSERT_TRUE(releasing.wake_up(std::nullopt));
  EXPECT_EQ(releasing.usage().at("weights").backed_up, kMiB);
  releasing.drop_used_backups();
  EXPECT_EQ(releasing.usage().at("weights").backed_up, 0U);
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

TEST_F(TaggedAllocatorTest, AnUnknownTagChangesNothing) {
  const auto unknown = allocator_.wake_up(std::vector{MemoryTag("weight")});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(unknown.error().message, "unknown tag \"weight\"; there are: kv_cache, weights");
  EXPECT_FALSE(allocator_.discard({kKvCacheTag, MemoryTag("x")}));
  EXPECT_FALSE(allocator_.sleep({MemoryTag("x")}));
  EXPECT_TRUE(allocator_.is_mapped(kKvCacheTag));
}

TEST_F(TaggedAllocatorTest, APartialWakeUpBringsTheOtherTagsThatAreNotDeferrable) {
  TaggedMemory scratch = std::move(*allocator_.allocate(MemoryTag("scratch"), kMiB));
  ASSERT_TRUE(allocator_.sleep({kWeightsTag}));
  ASSERT_TRUE(allocator_.wake_up(std::vector{kWeightsTag}));
  EXPECT_TRUE(allocator_.is_mapped(MemoryTag("scratch")));
  EXPECT_FALSE(allocator_.is_mapped(kKvCacheTag));
}

TEST_F(TaggedAllocatorTest, DiscardingASleepingTagDropsItsBackup) {
  ASSERT_TRUE(allocator_.sleep({kWeightsTag}));
  ASSERT_TRUE(allocator_.sleep({}));
  EXPECT_EQ(allocator_.usage().at("weights").backed_up, 0U);
  ASSERT_TRUE(allocator_.wake_up(std::nullopt));
  EXPECT_FALSE(holds(weights_, 1));
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

TEST_F(TaggedAllocatorTest, RandomCyclesLeaveNothingBehind) {
  std::mt19937 random(7);
  const auto descriptors = block_references()->descriptors;
  const auto resident = *resident_memory();
  for (int cycle = 0; cycle < 200; ++cycle) {
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
  EXPECT_LT(*resident_memory(), resident + 8 * kMiB) << "one backup of 3 MiB is retained";
}

}  // namespace
}  // namespace dormouse

#include "memory/tagged_allocator.h"

#include <gtest/gtest.h>

#include "memory/allocator_fixture.h"
#include "testing/host_memory.h"

namespace dormouse {
namespace {

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

TEST_F(TaggedAllocatorTest, TheReceiptSaysWhatStays) {
  std::vector<std::string> journal;
  CountingListener listener("tier", journal, nullptr);
  listener.keeps = 77;
  const auto subscription = allocator_.subscribe(kKvCacheTag, listener);
  const auto receipt = allocator_.sleep({kWeightsTag});
  ASSERT_TRUE(receipt);
  ASSERT_EQ(receipt->kept.size(), 2U);
  EXPECT_EQ(receipt->kept[0].what, "weights backup");
  EXPECT_EQ(receipt->kept[0].bytes, weights_.size());
  EXPECT_EQ(receipt->kept[1].what, "tier");
  EXPECT_EQ(receipt->kept[1].bytes, 77U);
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
    Status before_unmap(Unmapping& /*unmapping*/) override { return {}; }
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

}  // namespace
}  // namespace dormouse

#include "kv_connector/offload/host_tier.h"

#include <gtest/gtest.h>

namespace dormouse {
namespace {

std::uint32_t put(HostTier& tier, const std::string& key) {
  const auto slot = tier.allocate(key);
  EXPECT_TRUE(slot) << key;
  tier.set_ready(slot.value_or(0));
  return slot.value_or(0);
}

TEST(HostTier, FindsABlockOnceItIsReady) {
  HostTier tier(2);
  const auto slot = tier.allocate("a");
  ASSERT_TRUE(slot);
  EXPECT_FALSE(tier.find("a"));
  EXPECT_EQ(tier.holds("a"), slot);
  tier.set_ready(*slot);
  EXPECT_EQ(tier.find("a"), slot);
}

TEST(HostTier, DisplacesTheBlockTouchedLongestAgo) {
  HostTier tier(3);
  const std::uint32_t a = put(tier, "a");
  put(tier, "b");
  put(tier, "c");
  tier.touch(a);
  put(tier, "d");
  EXPECT_TRUE(tier.find("a"));
  EXPECT_FALSE(tier.find("b"));
  EXPECT_TRUE(tier.find("c"));
  EXPECT_EQ(tier.evictions(), 1U);
}

TEST(HostTier, NeverHandsOutAUsedSlot) {
  HostTier tier(2);
  const std::uint32_t a = put(tier, "a");
  const std::uint32_t b = put(tier, "b");
  tier.acquire(a, 2);
  tier.acquire(b);
  EXPECT_FALSE(tier.allocate("c"));
  tier.release(a);
  EXPECT_FALSE(tier.allocate("c"));
  tier.release(a);
  EXPECT_EQ(tier.allocate("c"), a);
  EXPECT_TRUE(tier.find("b"));
}

TEST(HostTier, AForgottenSlotIsFreeOnceNobodyUsesIt) {
  HostTier tier(1);
  const std::uint32_t a = put(tier, "a");
  tier.acquire(a);
  tier.forget_all();
  EXPECT_FALSE(tier.holds("a"));
  EXPECT_FALSE(tier.allocate("b")) << "a copy out of it is under way";
  tier.release(a);
  EXPECT_EQ(tier.allocate("b"), a);
  tier.set_ready(a);
  EXPECT_TRUE(tier.find("b"));
  EXPECT_EQ(tier.num_blocks(), 1U);
}

}  // namespace
}  // namespace dormouse

#include "kv_cache/block_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace dormouse {
namespace {

const std::vector<TokenId> kTokens = {1, 2, 3, 4};

BlockHash hash_of(std::uint64_t n) {
  return {n, ~n};
}

// Takes a block, caches it as `n` and frees it.
BlockId cache_and_release(BlockPool& pool, std::uint64_t n) {
  const BlockId block = pool.allocate().value();
  EXPECT_TRUE(pool.publish(block, hash_of(n), kTokens));
  pool.release(block);
  return block;
}

TEST(BlockPool, HandsOutEveryBlockOnceAndThenNothing) {
  BlockPool pool(3);
  std::vector<bool> seen(3);
  for (int i = 0; i < 3; ++i) {
    const BlockId block = pool.allocate().value();
    EXPECT_FALSE(seen[block]);
    seen[block] = true;
  }
  EXPECT_FALSE(pool.allocate());
  EXPECT_EQ(pool.used(), 3U);
  EXPECT_EQ(pool.free(), 0U);
  EXPECT_TRUE(pool.consistent());
}

TEST(BlockPool, WorksWithoutAnyBlock) {
  BlockPool pool(0);
  EXPECT_FALSE(pool.allocate());
  EXPECT_TRUE(pool.reset_cached());
  EXPECT_TRUE(pool.consistent());
}

TEST(BlockPool, FindsAReleasedBlockByItsContents) {
  BlockPool pool(2);
  const BlockId block = cache_and_release(pool, 5);
  EXPECT_EQ(pool.find_cached(hash_of(5), kTokens), block);
  EXPECT_EQ(pool.cached(), 1U);
  EXPECT_EQ(pool.used(), 0U);
  EXPECT_FALSE(pool.find_cached(hash_of(6), kTokens));
}

TEST(BlockPool, ComparesTheTokensAfterTheHash) {
  BlockPool pool(2);
  cache_and_release(pool, 5);
  const std::vector<TokenId> colliding = {1, 2, 3, 5};
  EXPECT_FALSE(pool.find_cached(hash_of(5), colliding));
}

TEST(BlockPool, ReusesTheOldestFreeBlockFirst) {
  BlockPool pool(3);
  std::vector<BlockId> blocks;
  for (int i = 0; i < 3; ++i)
    blocks.push_back(pool.allocate().value());
  for (const BlockId i : {1U, 2U, 0U}) {
    pool.publish(blocks[i], hash_of(i), kTokens);
    pool.release(blocks[i]);
  }
  EXPECT_EQ(pool.allocate(), blocks[1]);
  EXPECT_EQ(pool.allocate(), blocks[2]);
  EXPECT_EQ(pool.allocate(), blocks[0]);
}

TEST(BlockPool, ReusesBlocksThatHoldNothingBeforeCachedOnes) {
  BlockPool pool(2);
  const BlockId cached = cache_and_release(pool, 1);
  const BlockId plain = pool.allocate().value();
  ASSERT_NE(plain, cached);
  pool.release(plain);
  EXPECT_EQ(pool.allocate(), plain);
  EXPECT_TRUE(pool.find_cached(hash_of(1), kTokens));
}

TEST(BlockPool, ForgetsABlockOnlyWhenItIsHandedOutAgain) {
  BlockPool pool(1);
  const BlockId block = cache_and_release(pool, 1);
  EXPECT_TRUE(pool.find_cached(hash_of(1), kTokens));
  EXPECT_EQ(pool.allocate(), block);
  EXPECT_FALSE(pool.find_cached(hash_of(1), kTokens));
  EXPECT_EQ(pool.cached(), 0U);
}

TEST(BlockPool, AcquiringACachedBlockTakesItFromTheFreeOnes) {
  BlockPool pool(1);
  const BlockId block = cache_and_release(pool, 1);
  pool.acquire_cached(block);
  EXPECT_EQ(pool.free(), 0U);
  EXPECT_FALSE(pool.allocate());
  EXPECT_TRUE(pool.consistent());
}

TEST(BlockPool, FreesASharedBlockWithItsLastHolder) {
  BlockPool pool(2);
  const BlockId block = pool.allocate().value();
  pool.publish(block, hash_of(1), kTokens);
  pool.acquire_cached(block);
  EXPECT_EQ(pool.holders(block), 2U);
  EXPECT_EQ(pool.used(), 1U);
  pool.release(block);
  EXPECT_EQ(pool.used(), 1U);
  pool.release(block);
  EXPECT_EQ(pool.used(), 0U);
  EXPECT_TRUE(pool.consistent());
}

TEST(BlockPool, KeepsTheFirstOfTwoBlocksWithEqualContents) {
  BlockPool pool(2);
  const BlockId first = pool.allocate().value();
  const BlockId second = pool.allocate().value();
  EXPECT_TRUE(pool.publish(first, hash_of(1), kTokens));
  EXPECT_FALSE(pool.publish(second, hash_of(1), kTokens));
  EXPECT_EQ(pool.find_cached(hash_of(1), kTokens), first);
  pool.release(first);
  pool.release(second);
  EXPECT_EQ(pool.allocate(), second);
  EXPECT_EQ(pool.find_cached(hash_of(1), kTokens), first);
}

TEST(BlockPool, RefusesToResetWhileBlocksAreHeld) {
  BlockPool pool(2);
  const BlockId block = pool.allocate().value();
  pool.publish(block, hash_of(1), kTokens);
  EXPECT_FALSE(pool.reset_cached());
  EXPECT_TRUE(pool.find_cached(hash_of(1), kTokens));
  pool.release(block);
  EXPECT_TRUE(pool.reset_cached());
  EXPECT_FALSE(pool.find_cached(hash_of(1), kTokens));
  EXPECT_EQ(pool.cached(), 0U);
  EXPECT_EQ(pool.generation(), 1U);
}

TEST(BlockPool, NoHashSurvivesAnUnmap) {
  BlockPool pool(4);
  for (std::uint64_t n = 0; n < 4; ++n)
    cache_and_release(pool, n);
  pool.forget_all();
  EXPECT_EQ(pool.generation(), 2U);
  EXPECT_EQ(pool.cached(), 0U);
  for (std::uint64_t n = 0; n < 4; ++n)
    EXPECT_FALSE(pool.find_cached(hash_of(n), kTokens));
  EXPECT_TRUE(pool.consistent());
}

TEST(BlockPoolDeathTest, StopsOnMisuse) {
  BlockPool pool(2);
  const BlockId block = pool.allocate().value();
  EXPECT_DEATH(pool.forget_all(), "no block may be held across an unmap");
  EXPECT_DEATH(pool.acquire_cached(block), "only a cached block");
  pool.release(block);
  EXPECT_DEATH(pool.release(block), "released once for each holder");
  EXPECT_DEATH(pool.publish(block, hash_of(1), kTokens), "published once");
}

TEST(BlockPool, StaysConsistentUnderRandomUse) {
  std::mt19937 random(1);
  BlockPool pool(12);
  std::vector<BlockId> held;
  for (int step = 0; step < 20000; ++step) {
    const BlockHash hash = hash_of(random() % 20);
    switch (random() % 4) {
      case 0:
        if (const auto block = pool.allocate()) {
          held.push_back(*block);
          pool.publish(*block, hash, kTokens);
        }
        break;
      case 1:
        if (const auto block = pool.find_cached(hash, kTokens)) {
          pool.acquire_cached(*block);
          held.push_back(*block);
        }
        break;
      default:
        if (!held.empty()) {
          std::swap(held[random() % held.size()], held.back());
          pool.release(held.back());
          held.pop_back();
        }
    }
    ASSERT_TRUE(pool.consistent());
  }
  for (const BlockId block : held)
    pool.release(block);
  EXPECT_EQ(pool.free(), pool.total());
  EXPECT_TRUE(pool.consistent());
}

}  // namespace
}  // namespace dormouse

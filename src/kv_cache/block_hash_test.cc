#include "kv_cache/block_hash.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace dormouse {
namespace {

const std::vector<TokenId> kTokens = {1, 2, 3, 4};

TEST(BlockHash, DependsOnTheTokensAndTheirOrder) {
  const BlockHasher hasher(7);
  const BlockHash root = hasher.root("");
  const std::vector<TokenId> swapped = {2, 1, 3, 4};
  EXPECT_EQ(hasher.child(root, kTokens), hasher.child(root, kTokens));
  EXPECT_NE(hasher.child(root, kTokens), hasher.child(root, swapped));
}

TEST(BlockHash, DependsOnEverythingBeforeTheBlock) {
  const BlockHasher hasher(7);
  const std::vector<TokenId> other = {9, 2, 3, 4};
  const BlockHash root = hasher.root("");
  const BlockHash after_tokens = hasher.child(hasher.child(root, kTokens), kTokens);
  const BlockHash after_other = hasher.child(hasher.child(root, other), kTokens);
  EXPECT_NE(after_tokens, after_other);
  EXPECT_NE(after_tokens, hasher.child(root, kTokens));
}

TEST(BlockHash, KeepsSaltsApart) {
  const BlockHasher hasher(7);
  EXPECT_NE(hasher.child(hasher.root("alice"), kTokens), hasher.child(hasher.root("bob"), kTokens));
  EXPECT_NE(hasher.root(""), hasher.root("alice"));
}

TEST(BlockHash, DiffersFromOneProcessKeyToTheNext) {
  EXPECT_NE(BlockHasher(1).child(BlockHasher(1).root(""), kTokens),
            BlockHasher(2).child(BlockHasher(2).root(""), kTokens));
  EXPECT_NE(BlockHasher().root("salt"), BlockHasher().root("salt"));
}

TEST(BlockHash, UsesBothHalves) {
  const BlockHasher hasher(7);
  std::set<std::uint64_t> lows;
  std::set<std::uint64_t> highs;
  BlockHash hash = hasher.root("");
  for (int i = 0; i < 10000; ++i) {
    hash = hasher.child(hash, kTokens);
    lows.insert(hash.low);
    highs.insert(hash.high);
  }
  EXPECT_EQ(lows.size(), 10000U);
  EXPECT_EQ(highs.size(), 10000U);
}

}  // namespace
}  // namespace dormouse

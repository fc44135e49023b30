#include "kv_connector/pull/read_plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

namespace dormouse::pull {
namespace {

constexpr std::uint32_t kBlocks = 5;

KvShape shape(std::uint32_t first, std::uint32_t last) {
  return {.num_layers = 3,
          .num_kv_heads = 4,
          .first_kv_head = first,
          .last_kv_head = last,
          .head_dim = 2,
          .block_size = 4};
}

// One rank's cache, whose every byte tells which head of which block of which plane it is of.
struct Cache {
  explicit Cache(KvShape of, bool filled) : shape(of), bytes(kBlocks * of.block_bytes()) {
    if (filled)
      each([](std::byte& byte, std::byte expected) { byte = expected; }, 0);
  }
  void each(const std::function<void(std::byte&, std::byte)>& visit, BlockId shift) {
    std::size_t at = 0;
    for (BlockId block = 0; block < kBlocks; ++block)
      for (std::size_t plane = 0; plane < 2 * shape.num_layers; ++plane)
        for (std::uint32_t head = shape.first_kv_head; head < shape.last_kv_head; ++head)
          for (std::size_t i = 0; i < shape.head_bytes(); ++i)
            visit(bytes[at++], static_cast<std::byte>((block + shift) % kBlocks * 50 + plane * 31 +
                                                      head * 7 + i));
  }
  CacheView view() const { return {shape, kBlocks}; }

  KvShape shape;
  std::vector<std::byte> bytes;
};

std::vector<BlockId> all_blocks(BlockId shift) {
  std::vector<BlockId> blocks;
  for (BlockId i = 0; i < kBlocks; ++i)
    blocks.push_back((i + shift) % kBlocks);
  return blocks;
}

// Copies block i + 1 of the remote caches to block i of the local one; says how many spans it took.
std::size_t pull(Cache& local, const std::vector<Cache>& remotes) {
  std::size_t count = 0;
  for (const Cache& remote : remotes) {
    const auto spans =
        plan_reads(local.view(), local.bytes.data(), remote.view(), all_blocks(0), all_blocks(1));
    EXPECT_TRUE(spans);
    for (const ReadSpan& span : *spans)
      std::memcpy(span.local, remote.bytes.data() + span.remote_offset, span.bytes);
    count += spans->size();
  }
  return count;
}

void expect_pulled(Cache& local) {
  local.each([](std::byte& byte, std::byte expected) { ASSERT_EQ(byte, expected); }, 1);
}

TEST(ReadPlan, EqualRanksMoveBlocksWhole) {
  Cache local(shape(0, 4), false);
  EXPECT_EQ(pull(local, {Cache(shape(0, 4), true)}), kBlocks);
  expect_pulled(local);
  Cache half(shape(2, 4), false);
  EXPECT_EQ(pull(half, {Cache(shape(2, 4), true)}), kBlocks);
  expect_pulled(half);
}

TEST(ReadPlan, OneRankGathersFromTwo) {
  Cache local(shape(0, 4), false);
  EXPECT_EQ(pull(local, {Cache(shape(0, 2), true), Cache(shape(2, 4), true)}), 2 * kBlocks * 6);
  expect_pulled(local);
}

TEST(ReadPlan, TwoRanksReadTheirHeadsFromOne) {
  for (const std::uint32_t first : {0U, 2U}) {
    Cache local(shape(first, first + 2), false);
    EXPECT_EQ(pull(local, {Cache(shape(0, 4), true)}), kBlocks * 6);
    expect_pulled(local);
  }
}

TEST(ReadPlan, RangesNeedNotBeEqualShares) {
  Cache local(shape(1, 4), false);
  pull(local, {Cache(shape(0, 3), true), Cache(shape(3, 4), true)});
  expect_pulled(local);
}

TEST(ReadPlan, RanksWithoutCommonHeadsReadNothing) {
  Cache local(shape(0, 2), false);
  EXPECT_EQ(pull(local, {Cache(shape(2, 4), true)}), 0U);
}

TEST(ReadPlan, BlocksOutsideEitherCacheAreRefused) {
  Cache cache(shape(0, 4), false);
  const auto plan = [&](std::vector<BlockId> local, std::vector<BlockId> remote) {
    return plan_reads(cache.view(), cache.bytes.data(), cache.view(), local, remote);
  };
  EXPECT_TRUE(plan({0, 4}, {4, 0}));
  EXPECT_EQ(plan({0, 5}, {0, 1}).error().message, "local block 5 is outside a cache of 5 blocks");
  EXPECT_EQ(plan({0, 1}, {0, 5}).error().message, "remote block 5 is outside a cache of 5 blocks");
  EXPECT_FALSE(plan({0, 1}, {0}));
}

TEST(ReadPlan, WhatDiffersIsNamedWithBothValues) {
  const KvShape local = shape(0, 4);
  EXPECT_TRUE(check_compatible(local, shape(2, 4)));
  const auto message = [&](const std::function<void(KvShape&)>& change) {
    KvShape remote = local;
    change(remote);
    const Status checked = check_compatible(local, remote);
    EXPECT_FALSE(checked);
    return checked ? "" : checked.error().message;
  };
  EXPECT_EQ(message([](KvShape& s) { s.num_layers = 9; }),
            "num_layers differs: 3 here, 9 at the peer");
  EXPECT_EQ(message([](KvShape& s) { s.num_kv_heads = 8; }),
            "num_kv_heads differs: 4 here, 8 at the peer");
  EXPECT_EQ(message([](KvShape& s) { s.head_dim = 8; }), "head_dim differs: 2 here, 8 at the peer");
  EXPECT_EQ(message([](KvShape& s) { s.block_size = 16; }),
            "block_size differs: 4 here, 16 at the peer");
  EXPECT_EQ(message([](KvShape& s) { s.dtype = "float8"; }),
            "dtype differs: float16 here, float8 at the peer");
  EXPECT_EQ(message([](KvShape& s) { s.layout = "other"; }),
            "layout differs: K:head_dim,token V:token,head_dim here, other at the peer");
}

TEST(ReadPlan, HashOfHeadsDoesNotDependOnTheirNeighbours) {
  const Cache all(shape(0, 4), true);
  Cache part(shape(1, 3), true);
  const HeadRange heads{1, 3};
  const std::byte* block = part.bytes.data() + 2 * part.shape.block_bytes();
  const std::uint64_t hash = hash_heads(part.shape, block, heads);
  EXPECT_EQ(hash, hash_heads(all.shape, all.bytes.data() + 2 * all.shape.block_bytes(), heads));
  for (std::size_t i = 0; i < part.shape.block_bytes(); ++i) {
    std::byte& byte = part.bytes[2 * part.shape.block_bytes() + i];
    byte ^= std::byte{1};
    EXPECT_NE(hash_heads(part.shape, block, heads), hash);
    byte ^= std::byte{1};
  }
}

}  // namespace
}  // namespace dormouse::pull

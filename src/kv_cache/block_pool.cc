#include "kv_cache/block_pool.h"

#include <algorithm>
#include <ranges>

#include "base/check.h"

namespace dormouse {

BlockPool::BlockPool(std::uint32_t num_blocks) : blocks_(num_blocks) {
  for (BlockId block = 0; block < num_blocks; ++block)
    push_back(block);
}

std::optional<BlockId> BlockPool::allocate() {
  if (first_free_ == kNone)
    return std::nullopt;
  const BlockId block = first_free_;
  unlink(block);
  forget(block);
  blocks_[block].holders = 1;
  ++num_used_;
  return block;
}

std::optional<BlockId> BlockPool::find_cached(const BlockHash& hash,
                                              std::span<const TokenId> tokens) const {
  const auto found = index_.find(hash);
  if (found == index_.end() || !std::ranges::equal(blocks_[found->second].tokens, tokens))
    return std::nullopt;
  return found->second;
}

void BlockPool::acquire_cached(BlockId block) {
  DM_CHECK(block < total() && blocks_[block].hash, "only a cached block can be acquired");
  if (blocks_[block].holders++ > 0)
    return;
  unlink(block);
  ++num_used_;
}

bool BlockPool::publish(BlockId id, const BlockHash& hash, std::span<const TokenId> tokens) {
  Block& block = blocks_[id];
  DM_CHECK(block.holders > 0 && !block.hash, "a held block is published once");
  if (!index_.try_emplace(hash, id).second)
    return false;
  block.hash = hash;
  block.tokens.assign(tokens.begin(), tokens.end());
  return true;
}

void BlockPool::release(BlockId id) {
  Block& block = blocks_[id];
  DM_CHECK(block.holders > 0, "a block is released once for each holder");
  if (--block.holders > 0)
    return;
  --num_used_;
  block.hash ? push_back(id) : push_front(id);
}

bool BlockPool::reset_cached() {
  if (num_used_ > 0)
    return false;
  for (BlockId block = 0; block < total(); ++block)
    forget(block);
  return true;
}

void BlockPool::forget_all() {
  DM_CHECK(reset_cached(), "no block may be held across an unmap");
  ++generation_;
}

bool BlockPool::consistent() const {
  std::uint32_t in_list = 0;
  BlockId previous = kNone;
  for (BlockId block = first_free_; block != kNone; block = blocks_[block].next) {
    if (++in_list > total() || blocks_[block].holders > 0 || blocks_[block].previous != previous)
      return false;
    previous = block;
  }
  const auto held = std::ranges::count_if(blocks_, [](const Block& b) { return b.holders > 0; });
  const auto hashed = std::ranges::count_if(blocks_, [](const Block& b) { return bool{b.hash}; });
  const bool index_agrees = std::ranges::all_of(
      index_, [this](const auto& entry) { return blocks_[entry.second].hash == entry.first; });
  return previous == last_free_ && in_list == num_free_ && std::cmp_equal(held, num_used_) &&
         num_free_ + num_used_ == total() && std::cmp_equal(hashed, index_.size()) && index_agrees;
}

void BlockPool::push_front(BlockId block) {
  blocks_[block].previous = kNone;
  blocks_[block].next = first_free_;
  (first_free_ == kNone ? last_free_ : blocks_[first_free_].previous) = block;
  first_free_ = block;
  ++num_free_;
}

void BlockPool::push_back(BlockId block) {
  blocks_[block].previous = last_free_;
  blocks_[block].next = kNone;
  (last_free_ == kNone ? first_free_ : blocks_[last_free_].next) = block;
  last_free_ = block;
  ++num_free_;
}

void BlockPool::unlink(BlockId id) {
  const Block& block = blocks_[id];
  (block.previous == kNone ? first_free_ : blocks_[block.previous].next) = block.next;
  (block.next == kNone ? last_free_ : blocks_[block.next].previous) = block.previous;
  --num_free_;
}

void BlockPool::forget(BlockId id) {
  Block& block = blocks_[id];
  if (!block.hash)
    return;
  index_.erase(*block.hash);
  block.hash.reset();
  block.tokens.clear();
}

}  // namespace dormouse

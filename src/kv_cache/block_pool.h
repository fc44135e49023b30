// Hands out the blocks of the KV cache and remembers what the free ones still hold.
//
// The prefix cache is the free list: a released block keeps its contents and its hash until it is
// handed out again, least recently released first; blocks that hold nothing reusable go before all
// others. A published block is full and never written again, so holders share it without copying.
//
// Owns:    bookkeeping only; the memory belongs to whoever mapped it.
// Threads: one, the engine's.
// Order:   allocate or acquire_cached, publish when full and computed, release once for each
//          holder.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "dormouse/request.h"
#include "kv_cache/block_hash.h"
#include "protocol/step.h"

namespace dormouse {

class BlockPool {
 public:
  explicit BlockPool(std::uint32_t num_blocks);

  // A block with one holder and undefined contents; what it was cached for is forgotten.
  // Nothing: every block is held.
  std::optional<BlockId> allocate();

  // The block that holds exactly these tokens after the prefix that `hash` names. Changes nothing.
  std::optional<BlockId> find_cached(const BlockHash& hash, std::span<const TokenId> tokens) const;

  // One holder more for a block that find_cached gave, with no allocate in between.
  void acquire_cached(BlockId block);

  // Makes a held block's contents findable. False: another block already has that hash and it
  // stays with that one.
  bool publish(BlockId block, const BlockHash& hash, std::span<const TokenId> tokens);

  // One holder less; the last one frees the block. Release a sequence's blocks from its end, so
  // that the shared beginning stays cached longest.
  void release(BlockId block);

  // Forgets all cached contents. False: blocks are held, and nothing changed.
  [[nodiscard]] bool reset_cached();

  // For memory that was unmapped: forgets all cached contents and starts a new generation.
  // No block may be held.
  void forget_all();

  std::uint64_t generation() const { return generation_; }  // from 1
  std::uint32_t total() const { return static_cast<std::uint32_t>(blocks_.size()); }
  std::uint32_t free() const { return num_free_; }
  std::uint32_t used() const { return num_used_; }  // held by at least one
  std::uint32_t cached() const { return static_cast<std::uint32_t>(index_.size()); }
  std::uint32_t holders(BlockId block) const { return blocks_[block].holders; }

  // Walks everything: free + used == total, the list and the index agree with the blocks.
  // For idle moments and tests.
  bool consistent() const;

 private:
  static constexpr BlockId kNone = UINT32_MAX;

  struct Block {
    std::uint32_t holders = 0;
    BlockId previous = kNone;  // in the free list; meaningful while free
    BlockId next = kNone;
    std::optional<BlockHash> hash;
    std::vector<TokenId> tokens;  // valid with `hash`
  };

  void push_front(BlockId block);
  void push_back(BlockId block);
  void unlink(BlockId block);
  void forget(BlockId block);

  std::vector<Block> blocks_;
  std::unordered_map<BlockHash, BlockId, BlockHash::Bucket> index_;
  BlockId first_free_ = kNone;
  BlockId last_free_ = kNone;
  std::uint32_t num_free_ = 0;
  std::uint32_t num_used_ = 0;
  std::uint64_t generation_ = 1;
};

}  // namespace dormouse

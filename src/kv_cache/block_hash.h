// Names the contents of a full KV block: its token ids and, by the chain, everything before them.
//
// 128 bits of XXH3 over (hash of the parent block, token ids of this block); the chain starts from
// the request's cache salt. XXH3 is no cryptographic hash, so two things keep one user's text from
// another: the chain is keyed with a secret that each process draws anew, so that a collision
// cannot be prepared outside, and BlockPool compares the block's token ids after the hash. What is
// left is a chance collision of two unlike prefixes that end in equal blocks: 2^-64 at four billion
// blocks.
//
// Threads: any; nothing changes after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "dormouse/request.h"

namespace dormouse {

struct BlockHash {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  bool operator==(const BlockHash&) const = default;

  struct Bucket {
    std::size_t operator()(const BlockHash& hash) const { return hash.low; }
  };
};

class BlockHasher {
 public:
  BlockHasher();                            // draws its key from the system
  explicit BlockHasher(std::uint64_t key);  // for tests

  // The parent of a request's first block. Requests of unlike salts never share a block.
  BlockHash root(std::string_view cache_salt) const;

  BlockHash child(const BlockHash& parent, std::span<const TokenId> tokens) const;

 private:
  std::uint64_t key_;
};

}  // namespace dormouse

// Which bytes of another rank's blocks belong where in ours. Pure.
//
// Ranks split the KV heads, each engine in its own way: what two ranks have in common is a range of
// heads, and in every block that range is contiguous within one plane (layer, K or V).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kv_connector/pull/messages.h"
#include "transfer/transfer_agent.h"

namespace dormouse::pull {

HeadRange heads_of(const KvShape& rank);
HeadRange common_heads(HeadRange a, HeadRange b);
std::string to_string(HeadRange heads);  // "0-7"

// kUnsupported names the first property that differs, with both values.
Status check_compatible(const KvShape& local, const KvShape& remote);

// How large one rank's cache is.
struct CacheView {
  const KvShape& shape;
  std::uint32_t num_blocks = 0;
};

// From remote_blocks[i] to local_blocks[i], the heads that both ranks have. Blocks that are alike
// move whole. kInvalidArgument for a block outside its cache, or lists of different lengths.
Result<std::vector<ReadSpan>> plan_reads(CacheView local, std::byte* local_bytes, CacheView remote,
                                         std::span<const BlockId> local_blocks,
                                         std::span<const BlockId> remote_blocks);

// Of these heads in one block, the same for every split of the heads around them.
std::uint64_t hash_heads(const KvShape& shape, const std::byte* block, HeadRange heads);

}  // namespace dormouse::pull

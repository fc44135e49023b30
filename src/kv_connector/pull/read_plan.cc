#include "kv_connector/pull/read_plan.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "base/hash.h"

namespace dormouse::pull {
namespace {

// Offset of a plane's heads within a block.
std::size_t heads_offset(const KvShape& shape, std::size_t plane, HeadRange heads) {
  return plane * shape.plane_bytes() + (heads.first - shape.first_kv_head) * shape.head_bytes();
}

bool is_whole(const KvShape& shape, HeadRange heads) {
  return heads.first == shape.first_kv_head && heads.last == shape.last_kv_head;
}

template <class Value>
Status check_equal(const char* name, const Value& local, const Value& remote) {
  if (local == remote)
    return {};
  return fail(ErrorCode::kUnsupported,
              fmt::format("{} differs: {} here, {} at the peer", name, local, remote));
}

Status check_inside(const char* whose, std::span<const BlockId> blocks, std::uint32_t num_blocks) {
  for (const BlockId block : blocks) {
    if (block >= num_blocks)
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("{} block {} is outside a cache of {} blocks", whose, block, num_blocks));
  }
  return {};
}

}  // namespace

HeadRange heads_of(const KvShape& rank) {
  return {rank.first_kv_head, rank.last_kv_head};
}

HeadRange common_heads(HeadRange a, HeadRange b) {
  return {std::max(a.first, b.first), std::min(a.last, b.last)};
}

std::string to_string(HeadRange heads) {
  return fmt::format("{}-{}", heads.first, heads.last - 1);
}

Status check_compatible(const KvShape& local, const KvShape& remote) {
  DM_TRY(check_equal("num_layers", local.num_layers, remote.num_layers));
  DM_TRY(check_equal("num_kv_heads", local.num_kv_heads, remote.num_kv_heads));
  DM_TRY(check_equal("head_dim", local.head_dim, remote.head_dim));
  DM_TRY(check_equal("block_size", local.block_size, remote.block_size));
  DM_TRY(check_equal("dtype", local.dtype, remote.dtype));
  return check_equal("layout", local.layout, remote.layout);
}

Result<std::vector<ReadSpan>> plan_reads(CacheView local, std::byte* local_bytes, CacheView remote,
                                         std::span<const BlockId> local_blocks,
                                         std::span<const BlockId> remote_blocks) {
  if (local_blocks.size() != remote_blocks.size())
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} remote blocks for {} local ones", remote_blocks.size(),
                            local_blocks.size()));
  DM_TRY(check_inside("local", local_blocks, local.num_blocks));
  DM_TRY(check_inside("remote", remote_blocks, remote.num_blocks));
  const HeadRange heads = common_heads(heads_of(local.shape), heads_of(remote.shape));
  std::vector<ReadSpan> spans;
  if (heads.empty())
    return spans;
  const bool whole = is_whole(local.shape, heads) && is_whole(remote.shape, heads);
  const std::size_t planes = whole ? 1 : std::size_t{2} * local.shape.num_layers;
  const std::size_t bytes =
      whole ? local.shape.block_bytes() : (heads.last - heads.first) * local.shape.head_bytes();
  spans.reserve(planes * local_blocks.size());
  for (std::size_t i = 0; i < local_blocks.size(); ++i) {
    std::byte* to = local_bytes + local_blocks[i] * local.shape.block_bytes();
    const std::size_t from = remote_blocks[i] * remote.shape.block_bytes();
    for (std::size_t plane = 0; plane < planes; ++plane)
      spans.push_back({.remote_offset = from + heads_offset(remote.shape, plane, heads),
                       .local = to + heads_offset(local.shape, plane, heads),
                       .bytes = bytes});
  }
  return spans;
}

std::uint64_t hash_heads(const KvShape& shape, const std::byte* block, HeadRange heads) {
  const std::size_t bytes = (heads.last - heads.first) * shape.head_bytes();
  std::uint64_t hash = 0;
  for (std::size_t plane = 0; plane < std::size_t{2} * shape.num_layers; ++plane)
    hash = hash64({block + heads_offset(shape, plane, heads), bytes}, hash);
  return hash;
}

}  // namespace dormouse::pull

#include "kv_connector/pull/messages.h"

#include "base/checked.h"

namespace dormouse::pull {

Result<RankMetadata> decode_rank_metadata(std::string_view bytes) {
  DM_TRY_ASSIGN(auto message, AnyMessage<RankMetadata>::decode(bytes));
  RankMetadata rank = std::move(std::get<RankMetadata>(message.body));
  const KvShape& shape = rank.shape;
  const Checked plane = Checked(shape.num_kv_heads) * Checked(std::uint32_t{2}) *
                        Checked(shape.head_dim) * Checked(shape.block_size);
  const Checked cache =
      plane * Checked(std::uint32_t{2}) * Checked(shape.num_layers) * Checked(rank.num_blocks);
  const bool heads =
      shape.first_kv_head < shape.last_kv_head && shape.last_kv_head <= shape.num_kv_heads;
  if (!heads || !cache.fits(std::uint64_t{1} << 62) || *cache.value() == 0)
    return fail(ErrorCode::kDataLoss, "rank: its numbers describe no cache");
  return rank;
}

}  // namespace dormouse::pull

// Where the keys and values of a block lie. A block is contiguous over all layers, so that it is
// the unit that moves: [block][layer][K or V][kv head], and within a head f16 values, for K as
// [head_dim][position in block], so that scores of neighbours are computed side by side, and for V
// as [position in block][head_dim].
#pragma once

#include <cstddef>
#include <cstdint>

namespace dormouse {

struct KvLayout {
  std::uint32_t num_layers = 0;
  std::uint32_t num_kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t block_size = 0;  // tokens

  static constexpr std::size_t kElementBytes = 2;

  // Elements from one kv head to the next.
  std::size_t head_stride() const { return std::size_t{block_size} * head_dim; }
  std::size_t plane_elements() const { return num_kv_heads * head_stride(); }
  std::size_t block_bytes() const { return num_layers * 2 * plane_elements() * kElementBytes; }

  // Byte offset of the K (v = 0) or V (v = 1) plane of a layer within the cache region.
  std::size_t plane_offset(std::uint32_t block, std::uint32_t layer, std::uint32_t v) const {
    return block * block_bytes() + (std::size_t{layer} * 2 + v) * plane_elements() * kElementBytes;
  }

  bool operator==(const KvLayout&) const = default;
};

}  // namespace dormouse

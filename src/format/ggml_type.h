// The element types of a GGUF tensor: ids as in the file, and the block each is stored in.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace dormouse::format {

enum class GgmlType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

// `elements` consecutive values of a row take `bytes` bytes. Plain types are blocks of one.
struct BlockShape {
  std::uint32_t elements = 1;
  std::uint32_t bytes = 0;
};

// Empty for an id that is none of GgmlType.
std::optional<GgmlType> ggml_type_from_id(std::uint32_t id);
BlockShape block_shape(GgmlType type);
std::string_view type_name(GgmlType type);  // "Q4_1"

}  // namespace dormouse::format

// Views of matrices: as a model file stores them, and as the kernels want them.
//
// Owns: nothing; a view lives no longer than its bytes.
//
// The packed layout is one for all instruction sets. Rows stand in tiles of kTileRows, the last one
// filled up with zeros, and tiles follow each other without gaps:
//   kU4   for each 32 columns: 256 bytes of 4-bit q, f16 scale[16], f16 minimum[16];
//         value = scale * q + minimum. Byte 64*(g/2) + 4*r + j holds row r, column 4*g + j; an even
//         g in the low half of the byte, an odd one in the high half.
//   kS8   for each 32 columns: 512 bytes of signed q, f16 scale[16]; value = scale * q.
//         Byte 64*g + 4*r + j holds row r, column 4*g + j.
//   kF16, kBF16, kF32   for each column its 16 values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "format/ggml_type.h"

namespace dormouse {

// Rows of `type` blocks, one after another.
struct StoredMatrix {
  format::GgmlType type = format::GgmlType::kF32;
  std::uint32_t rows = 0;
  std::uint32_t cols = 0;
  const std::byte* data = nullptr;

  std::size_t row_bytes() const {
    const format::BlockShape block = format::block_shape(type);
    return std::size_t{cols} / block.elements * block.bytes;
  }
  const std::byte* row(std::size_t index) const { return data + index * row_bytes(); }
};

// Writes one row of `cols` values as floats. `cols` is a multiple of the type's block.
void dequantize_row(format::GgmlType type, const std::byte* row, std::size_t cols, float* out);

enum class PackedForm : std::uint8_t { kU4, kS8, kF16, kBF16, kF32 };
std::string_view to_string(PackedForm form);

inline constexpr std::size_t kTileRows = 16;
inline constexpr std::size_t kQuantBlock = 32;  // columns that share a scale

struct U4Block {
  std::uint8_t quants[kTileRows * kQuantBlock / 2];
  std::uint16_t scale[kTileRows];
  std::uint16_t minimum[kTileRows];
};
struct S8Block {
  std::int8_t quants[kTileRows * kQuantBlock];
  std::uint16_t scale[kTileRows];
};

constexpr bool is_quantized(PackedForm form) {
  return form == PackedForm::kU4 || form == PackedForm::kS8;
}

// Bytes of one tile of `cols` columns; quantized forms need a multiple of kQuantBlock.
constexpr std::size_t tile_bytes(PackedForm form, std::size_t cols) {
  switch (form) {
    case PackedForm::kU4:
      return cols / kQuantBlock * sizeof(U4Block);
    case PackedForm::kS8:
      return cols / kQuantBlock * sizeof(S8Block);
    case PackedForm::kF16:
    case PackedForm::kBF16:
      return cols * kTileRows * 2;
    case PackedForm::kF32:
      return cols * kTileRows * 4;
  }
  return 0;
}

struct PackedMatrix {
  PackedForm form = PackedForm::kF32;
  std::uint32_t rows = 0;
  std::uint32_t cols = 0;
  const std::byte* data = nullptr;  // aligned to 64 bytes

  std::size_t tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  std::size_t bytes() const { return tiles() * tile_bytes(form, cols); }
  const std::byte* tile(std::size_t index) const { return data + index * tile_bytes(form, cols); }
};

}  // namespace dormouse

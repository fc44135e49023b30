// A random matrix in both layouts. For tests.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "kernels/cpu/pack.h"
#include "tensor/random_rows.h"

namespace dormouse::kernels {

inline constexpr format::GgmlType kPackableTypes[] = {
    format::GgmlType::kF32,  format::GgmlType::kF16,  format::GgmlType::kBF16,
    format::GgmlType::kQ4_0, format::GgmlType::kQ4_1, format::GgmlType::kQ5_0,
    format::GgmlType::kQ8_0};

struct PackedRows {
  std::vector<std::byte> stored_bytes;
  std::vector<std::byte> packed_bytes;
  StoredMatrix stored;
  PackedMatrix packed;

  PackedRows(format::GgmlType type, std::uint32_t rows, std::uint32_t cols,
             std::vector<std::byte> bytes, std::byte dirt = std::byte{0})
      : stored_bytes(std::move(bytes)) {
    stored = {type, rows, cols, stored_bytes.data()};
    packed = {*packed_form(type), rows, cols, nullptr};
    packed_bytes.assign(packed.bytes(), dirt);
    packed.data = packed_bytes.data();
    for (std::size_t tile = 0; tile < packed.tiles(); ++tile) {
      std::array<const std::byte*, kTileRows> sources{};
      for (std::size_t r = 0; r < kTileRows && tile * kTileRows + r < rows; ++r)
        sources[r] = stored.row(tile * kTileRows + r);
      pack_tile(type, sources, cols, packed_bytes.data() + tile * tile_bytes(packed.form, cols));
    }
  }
  PackedRows(format::GgmlType type, std::uint32_t rows, std::uint32_t cols, std::uint32_t seed)
      : PackedRows(type, rows, cols, random_rows(type, rows, cols, seed)) {}

  std::vector<float> row(std::size_t index) const {
    std::vector<float> values(stored.cols);
    dequantize_row(stored.type, stored.row(index), stored.cols, values.data());
    return values;
  }
};

}  // namespace dormouse::kernels

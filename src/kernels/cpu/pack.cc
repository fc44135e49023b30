#include "kernels/cpu/pack.h"

#include <cstring>

#include "base/check.h"
#include "tensor/half.h"

namespace dormouse::kernels {
namespace {

using format::GgmlType;

template <class T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Where row r's column k lies among the bytes of a kS8 block.
constexpr std::size_t s8_index(std::size_t r, std::size_t k) {
  return k / 4 * 4 * kTileRows + 4 * r + k % 4;
}
// The same in a kU4 block, whose odd groups of four columns lie in the high halves of the even
// ones.
constexpr std::size_t u4_index(std::size_t r, std::size_t k) {
  return k / 8 * 4 * kTileRows + 4 * r + k % 4;
}
constexpr bool u4_is_high(std::size_t k) {
  return k / 4 % 2 == 1;
}

// Four-bit values in file order: 16 bytes, the low halves first.
int nibble(const std::byte* quants, std::size_t k) {
  const auto byte = std::to_integer<int>(quants[k % 16]);
  return k < 16 ? byte & 15 : byte >> 4;
}

void pack_u4(GgmlType type, const std::byte* source, std::size_t r, U4Block& block) {
  const auto scale = read<std::uint16_t>(source);
  block.scale[r] = scale;
  block.minimum[r] = type == GgmlType::kQ4_1 ? read<std::uint16_t>(source + 2)
                                             : f16_from_f32(-8 * f32_from_f16(scale));
  const std::byte* quants = source + (type == GgmlType::kQ4_1 ? 4 : 2);
  for (std::size_t k = 0; k < kQuantBlock; ++k) {
    const int q = nibble(quants, k);
    std::uint8_t& byte = block.quants[u4_index(r, k)];
    byte = static_cast<std::uint8_t>(u4_is_high(k) ? byte | q << 4 : q);
  }
}

void pack_s8(GgmlType type, const std::byte* source, std::size_t r, S8Block& block) {
  block.scale[r] = read<std::uint16_t>(source);
  if (type == GgmlType::kQ8_0) {
    for (std::size_t k = 0; k < kQuantBlock; k += 4)
      std::memcpy(&block.quants[s8_index(r, k)], source + 2 + k, 4);
    return;
  }
  const auto high = read<std::uint32_t>(source + 2);
  for (std::size_t k = 0; k < kQuantBlock; ++k) {
    const int q = nibble(source + 6, k) + static_cast<int>(high >> k & 1U) * 16 - 16;
    block.quants[s8_index(r, k)] = static_cast<std::int8_t>(q);
  }
}

template <class T>
void pack_dense(std::span<const std::byte* const, kTileRows> rows, std::size_t cols,
                std::byte* tile) {
  for (std::size_t k = 0; k < cols; ++k)
    for (std::size_t r = 0; r < kTileRows; ++r)
      if (rows[r] != nullptr)
        std::memcpy(tile + (k * kTileRows + r) * sizeof(T), rows[r] + k * sizeof(T), sizeof(T));
}

}  // namespace

std::optional<PackedForm> packed_form(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_0:
    case GgmlType::kQ4_1:
      return PackedForm::kU4;
    case GgmlType::kQ5_0:
    case GgmlType::kQ8_0:
      return PackedForm::kS8;
    case GgmlType::kF16:
      return PackedForm::kF16;
    case GgmlType::kBF16:
      return PackedForm::kBF16;
    case GgmlType::kF32:
      return PackedForm::kF32;
    default:
      return std::nullopt;
  }
}

void pack_tile(GgmlType type, std::span<const std::byte* const, kTileRows> rows, std::size_t cols,
               std::byte* tile) {
  const std::optional<PackedForm> form = packed_form(type);
  DM_CHECK(form.has_value(), "the type is one that packs");
  std::memset(tile, 0, tile_bytes(*form, cols));
  if (*form == PackedForm::kF32)
    return pack_dense<std::uint32_t>(rows, cols, tile);
  if (!is_quantized(*form))
    return pack_dense<std::uint16_t>(rows, cols, tile);
  const std::size_t stored_bytes = format::block_shape(type).bytes;
  for (std::size_t b = 0; b < cols / kQuantBlock; ++b)
    for (std::size_t r = 0; r < kTileRows; ++r) {
      if (rows[r] == nullptr)
        continue;
      const std::byte* source = rows[r] + b * stored_bytes;
      if (*form == PackedForm::kU4)
        pack_u4(type, source, r, reinterpret_cast<U4Block*>(tile)[b]);
      else
        pack_s8(type, source, r, reinterpret_cast<S8Block*>(tile)[b]);
    }
}

void unpack_row(const PackedMatrix& matrix, std::size_t row, float* out) {
  const std::byte* tile = matrix.tile(row / kTileRows);
  const std::size_t r = row % kTileRows;
  for (std::size_t k = 0; k < matrix.cols; ++k) {
    const std::size_t b = k / kQuantBlock;
    const std::size_t j = k % kQuantBlock;
    const std::size_t at = k * kTileRows + r;
    switch (matrix.form) {
      case PackedForm::kU4: {
        const U4Block& block = reinterpret_cast<const U4Block*>(tile)[b];
        const int byte = block.quants[u4_index(r, j)];
        const int q = u4_is_high(j) ? byte >> 4 : byte & 15;
        out[k] =
            f32_from_f16(block.scale[r]) * static_cast<float>(q) + f32_from_f16(block.minimum[r]);
        break;
      }
      case PackedForm::kS8: {
        const S8Block& block = reinterpret_cast<const S8Block*>(tile)[b];
        out[k] = f32_from_f16(block.scale[r]) * static_cast<float>(block.quants[s8_index(r, j)]);
        break;
      }
      case PackedForm::kF16:
        out[k] = f32_from_f16(read<std::uint16_t>(tile + at * 2));
        break;
      case PackedForm::kBF16:
        out[k] = f32_from_bf16(read<std::uint16_t>(tile + at * 2));
        break;
      case PackedForm::kF32:
        out[k] = read<float>(tile + at * 4);
        break;
    }
  }
}

}  // namespace dormouse::kernels

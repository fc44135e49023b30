#include "tensor/matrix.h"

#include <cstring>

#include "base/check.h"
#include "tensor/half.h"

namespace dormouse {
namespace {

using format::GgmlType;

template <class T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

float read_f16(const std::byte* from) {
  return f32_from_f16(read<std::uint16_t>(from));
}

// q of 32 four-bit values: the low halves are the first 16, the high halves the last.
void unpack_nibbles(const std::byte* quants, int (&q)[kQuantBlock]) {
  for (std::size_t j = 0; j < kQuantBlock / 2; ++j) {
    const auto byte = std::to_integer<int>(quants[j]);
    q[j] = byte & 15;
    q[j + kQuantBlock / 2] = byte >> 4;
  }
}

void dequantize_block(GgmlType type, const std::byte* block, float* out) {
  int q[kQuantBlock];
  const float scale = read_f16(block);
  float minimum = 0;
  switch (type) {
    case GgmlType::kQ4_0:
      unpack_nibbles(block + 2, q);
      minimum = -8 * scale;
      break;
    case GgmlType::kQ4_1:
      unpack_nibbles(block + 4, q);
      minimum = read_f16(block + 2);
      break;
    case GgmlType::kQ5_0: {
      unpack_nibbles(block + 6, q);
      const auto high = read<std::uint32_t>(block + 2);
      for (std::size_t j = 0; j < kQuantBlock; ++j)
        q[j] += static_cast<int>(high >> j & 1U) * 16 - 16;
      break;
    }
    case GgmlType::kQ8_0:
      for (std::size_t j = 0; j < kQuantBlock; ++j)
        q[j] = read<std::int8_t>(block + 2 + j);
      break;
    default:
      DM_CHECK(false, "no such block is taken");
  }
  for (std::size_t j = 0; j < kQuantBlock; ++j)
    out[j] = scale * static_cast<float>(q[j]) + minimum;
}

}  // namespace

void dequantize_row(GgmlType type, const std::byte* row, std::size_t cols, float* out) {
  const format::BlockShape shape = format::block_shape(type);
  for (std::size_t k = 0; k < cols; k += shape.elements, row += shape.bytes) {
    switch (type) {
      case GgmlType::kF32:
        out[k] = read<float>(row);
        break;
      case GgmlType::kF16:
        out[k] = read_f16(row);
        break;
      case GgmlType::kBF16:
        out[k] = f32_from_bf16(read<std::uint16_t>(row));
        break;
      default:
        dequantize_block(type, row, out + k);
    }
  }
}

std::string_view to_string(PackedForm form) {
  switch (form) {
    case PackedForm::kU4:
      return "u4";
    case PackedForm::kS8:
      return "s8";
    case PackedForm::kF16:
      return "f16";
    case PackedForm::kBF16:
      return "bf16";
    case PackedForm::kF32:
      return "f32";
  }
  return "unknown";
}

}  // namespace dormouse

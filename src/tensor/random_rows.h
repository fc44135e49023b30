// Rows of random weights in any stored type. For tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tensor/half.h"
#include "tensor/matrix.h"

namespace dormouse {

// Values are of the order of `scale`.
inline std::vector<std::byte> random_rows(format::GgmlType type, std::size_t rows, std::size_t cols,
                                          std::uint32_t seed, float scale = 1.0F) {
  using format::GgmlType;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const format::BlockShape shape = format::block_shape(type);
  std::vector<std::byte> bytes(rows * cols / shape.elements * shape.bytes);
  const auto put = [](std::byte* to, auto value) { std::memcpy(to, &value, sizeof value); };
  for (std::size_t at = 0; at < bytes.size(); at += shape.bytes) {
    std::byte* block = bytes.data() + at;
    const float value = scale * normal(random);
    if (type == GgmlType::kF32) {
      put(block, value);
    } else if (type == GgmlType::kF16) {
      put(block, f16_from_f32(value));
    } else if (type == GgmlType::kBF16) {
      put(block, static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
    } else {
      for (std::size_t i = 0; i < shape.bytes; ++i)
        block[i] = static_cast<std::byte>(random());
      const float steps = type == GgmlType::kQ8_0 ? 74.0F : type == GgmlType::kQ5_0 ? 9.0F : 4.6F;
      put(block, f16_from_f32(value / steps));
      if (type == GgmlType::kQ4_1)
        put(block + 2, f16_from_f32(-7.5F * value / steps + 0.1F * scale * normal(random)));
    }
  }
  return bytes;
}

}  // namespace dormouse

// Conversions between f32 and the two 16-bit floats, the same bits on every processor.
#pragma once

#include <bit>
#include <cstdint>

namespace dormouse {

constexpr float f32_from_bf16(std::uint16_t value) {
  return std::bit_cast<float>(std::uint32_t{value} << 16);
}

constexpr float f32_from_f16(std::uint16_t value) {
  const std::uint32_t sign = std::uint32_t{value & 0x8000U} << 16;
  const std::uint32_t magnitude = value & 0x7fffU;
  if (magnitude >= 0x7c00)  // infinity and NaN
    return std::bit_cast<float>(sign | 0x7f800000U | (magnitude & 0x3ffU) << 13);
  if (magnitude < 0x400) {  // zero and subnormal: an exact product
    const float small = static_cast<float>(magnitude) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(small));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000U));
}

// Rounds to the nearest, ties to even; too large becomes infinity.
constexpr std::uint16_t f16_from_f32(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U)  // NaN stays one, and quiet
    return static_cast<std::uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
  if (magnitude >= 0x477ff000U)
    return static_cast<std::uint16_t>(sign | 0x7c00U);
  if (magnitude < 0x38800000U) {  // subnormal: the addition rounds at the right bit
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U));
  }
  const std::uint32_t odd = (magnitude >> 13) & 1U;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000U + 0xfffU + odd) >> 13));
}

}  // namespace dormouse

#include "testing/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace dormouse::testing {
namespace {

using format::GgmlType;

constexpr std::size_t kBlock = 32;

template <class T>
void append(std::vector<std::byte>& target, T value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  target.insert(target.end(), bytes, bytes + sizeof(T));
}

// The scale as the file keeps it, so that values are divided by what they will be multiplied with.
float append_scale(std::vector<std::byte>& target, float scale) {
  const std::uint16_t bits = to_f16(scale);
  append(target, bits);
  return from_f16(bits);
}

std::uint8_t nibble(float value) {
  return static_cast<std::uint8_t>(std::clamp(std::nearbyint(value), 0.0F, 15.0F));
}

void append_nibbles(std::vector<std::byte>& target, std::span<const float> block, float scale,
                    float zero) {
  const auto level = [&](std::size_t i) {
    return nibble(scale == 0 ? 0.0F : (block[i] - zero) / scale);
  };
  for (std::size_t j = 0; j < kBlock / 2; ++j)
    append(target, static_cast<std::uint8_t>(level(j) | level(j + kBlock / 2) << 4));
}

void append_q8_0(std::vector<std::byte>& target, std::span<const float> block) {
  float largest = 0;
  for (const float value : block)
    largest = std::max(largest, std::abs(value));
  const float scale = append_scale(target, largest / 127);
  for (const float value : block) {
    const float level = scale == 0 ? 0.0F : std::nearbyint(value / scale);
    append(target, static_cast<std::int8_t>(std::clamp(level, -127.0F, 127.0F)));
  }
}

void append_q4_0(std::vector<std::byte>& target, std::span<const float> block) {
  const float furthest = *std::max_element(
      block.begin(), block.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
  const float scale = append_scale(target, furthest / -8);
  append_nibbles(target, block, scale, -8 * scale);
}

void append_q4_1(std::vector<std::byte>& target, std::span<const float> block) {
  const auto [low, high] = std::minmax_element(block.begin(), block.end());
  const float scale = append_scale(target, (*high - *low) / 15);
  const float zero = append_scale(target, *low);
  append_nibbles(target, block, scale, zero);
}

}  // namespace

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value))
    return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

std::uint16_t to_f16(float value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value))
    return sign | 0x7e00;
  const float magnitude = std::abs(value);
  if (magnitude >= 65520.0F)
    return sign | 0x7c00;
  // Scaled so that one unit in the last place of the result is 1, nearbyint rounds to even.
  const int exponent = magnitude == 0 ? -14 : std::max(std::ilogb(magnitude), -14);
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return static_cast<std::uint16_t>(sign | (units + ((exponent + 14) << 10)));
}

float from_f16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const int fraction = bits & 0x3ff;
  float magnitude = std::ldexp(static_cast<float>(fraction + (exponent == 0 ? 0 : 1024)),
                               std::max(exponent, 1) - 25);
  if (exponent == 31)
    magnitude = fraction == 0 ? HUGE_VALF : std::nanf("");
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

std::vector<std::byte> quantize(GgmlType type, std::span<const float> values) {
  const std::size_t step = format::block_shape(type).elements;
  DM_CHECK(values.size() % step == 0, "whole blocks");
  std::vector<std::byte> result;
  result.reserve(values.size() / step * format::block_shape(type).bytes);
  for (std::size_t i = 0; i < values.size(); i += step) {
    const auto block = values.subspan(i, step);
    switch (type) {
      case GgmlType::kF32:
        append(result, block[0]);
        break;
      case GgmlType::kF16:
        append(result, to_f16(block[0]));
        break;
      case GgmlType::kBF16:
        append(result, to_bf16(block[0]));
        break;
      case GgmlType::kQ8_0:
        append_q8_0(result, block);
        break;
      case GgmlType::kQ4_0:
        append_q4_0(result, block);
        break;
      case GgmlType::kQ4_1:
        append_q4_1(result, block);
        break;
      default:
        DM_CHECK(false, "no quantiser for this type");
    }
  }
  return result;
}

}  // namespace dormouse::testing

#include "tensor/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace dormouse {
namespace {

double value_of(std::uint16_t half) {
  const int exponent = half >> 10 & 31;
  const int fraction = half & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(Half, ReadsEveryFiniteValueExactly) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if ((half & 0x7c00) != 0x7c00) {
      ASSERT_EQ(f32_from_f16(half), value_of(half)) << bits;
    }
  }
  EXPECT_TRUE(std::isinf(f32_from_f16(0x7c00)));
  EXPECT_LT(f32_from_f16(0xfc00), 0);
  EXPECT_TRUE(std::isnan(f32_from_f16(0x7e00)));
}

TEST(Half, WritesBackEveryValueThatItRead) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if ((half & 0x7c00) != 0x7c00 || (half & 0x3ff) == 0) {
      ASSERT_EQ(f16_from_f32(f32_from_f16(half)), half);
    }
  }
}

TEST(Half, RoundsToTheNearestAndTiesToEven) {
  for (std::uint16_t half = 0; half < 0x7bff; ++half) {
    const auto next = static_cast<std::uint16_t>(half + 1);
    const auto middle = static_cast<float>((value_of(half) + value_of(next)) / 2);
    const std::uint16_t even = half % 2 == 0 ? half : next;
    ASSERT_EQ(f16_from_f32(middle), even) << half;
    ASSERT_EQ(f16_from_f32(-middle), even | 0x8000) << half;
    ASSERT_EQ(f16_from_f32(std::nextafter(middle, 0.0F)), half) << half;
    ASSERT_EQ(f16_from_f32(std::nextafter(middle, 1e9F)), next) << half;
  }
}

TEST(Half, TurnsWhatIsTooLargeIntoInfinityAndKeepsNan) {
  EXPECT_EQ(f16_from_f32(65504.0F), 0x7bff);
  EXPECT_EQ(f16_from_f32(65519.996F), 0x7bff);
  EXPECT_EQ(f16_from_f32(65520.0F), 0x7c00);
  EXPECT_EQ(f16_from_f32(-1e30F), 0xfc00);
  EXPECT_TRUE(std::isnan(f32_from_f16(f16_from_f32(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(Half, ReadsBf16AsTheUpperHalfOfAFloat) {
  EXPECT_EQ(f32_from_bf16(0x3f80), 1.0F);
  EXPECT_EQ(f32_from_bf16(0xc049), -3.140625F);
}

}  // namespace
}  // namespace dormouse

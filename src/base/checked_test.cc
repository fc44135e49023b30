#include "base/checked.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace dormouse {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

TEST(Checked, OverflowIsInvalidAndStaysSo) {
  const Checked sum = Checked(kMax) + Checked(1U);
  EXPECT_FALSE(sum.valid());
  EXPECT_FALSE((sum - Checked(kMax)).valid());
  EXPECT_FALSE((sum * Checked(0U)).valid());
  EXPECT_FALSE(sum.align_up(8).valid());
  EXPECT_FALSE(sum.fits(kMax));
  EXPECT_FALSE((Checked(std::uint64_t{1} << 32) * Checked(std::uint64_t{1} << 32)).valid());
  EXPECT_FALSE((Checked(1U) - Checked(2U)).valid());
}

TEST(Checked, AlignsUpOnlyToPowersOfTwoAndNeverWraps) {
  EXPECT_EQ(Checked(0U).align_up(32).value(), 0U);
  EXPECT_EQ(Checked(1U).align_up(32).value(), 32U);
  EXPECT_EQ(Checked(64U).align_up(32).value(), 64U);
  EXPECT_FALSE(Checked(64U).align_up(0).valid());
  EXPECT_FALSE(Checked(64U).align_up(24).valid());
  EXPECT_FALSE(Checked(kMax - 30).align_up(32).valid());
  EXPECT_EQ(Checked(kMax - 31).align_up(32).value(), kMax - 31);
}

TEST(Checked, AgreesWithArithmeticInTwiceTheWidth) {
  std::mt19937_64 random(1);
  const auto any_size = [&] { return random() >> (random() % 64); };
  for (int i = 0; i < 100'000; ++i) {
    const std::uint64_t a = any_size();
    const std::uint64_t b = any_size();
    const auto expect = [](Checked actual, unsigned __int128 exact) {
      ASSERT_EQ(actual.valid(), exact <= kMax);
      ASSERT_EQ(actual.value().value_or(0), exact <= kMax ? static_cast<std::uint64_t>(exact) : 0);
    };
    expect(Checked(a) + Checked(b), static_cast<unsigned __int128>(a) + b);
    expect(Checked(a) * Checked(b), static_cast<unsigned __int128>(a) * b);
  }
}

}  // namespace
}  // namespace dormouse

#include "base/secret.h"

#include <gtest/gtest.h>

namespace dormouse {
namespace {

TEST(Secret, IsDrawnAnewAndInHexadecimalDigits) {
  const std::string first = random_hex(16);
  EXPECT_EQ(first.size(), 32U);
  EXPECT_EQ(first.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(first, random_hex(16));
}

TEST(Secret, IsTheSameOnlyInEveryByte) {
  EXPECT_TRUE(same_secret("token", "token"));
  EXPECT_TRUE(same_secret("", ""));
  for (const char* wrong : {"Token", "tokem", "toke", "token1", ""})
    EXPECT_FALSE(same_secret("token", wrong)) << wrong;
}

}  // namespace
}  // namespace dormouse

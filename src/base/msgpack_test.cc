#include <gtest/gtest.h>

#include "base/json.h"

namespace dormouse {
namespace {

TEST(Msgpack, BringsEveryValueBack) {
  const Json value = Json::Object{
      {"null", nullptr},
      {"flag", true},
      {"small", 7},
      {"negative", -3},
      {"large", UINT64_MAX},
      {"lowest", INT64_MIN},
      {"real", 0.25},
      {"bytes", std::string("\xFF\x00\x80", 3)},
      {"list", Json::Array{1, "two", Json::Array{}}},
      {"object", Json::Object{{"inner", false}}},
  };
  const auto back = parse_msgpack(to_msgpack(value));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(to_msgpack(*back), to_msgpack(value));
  EXPECT_EQ(*back->find("bytes")->string(), std::string("\xFF\x00\x80", 3));
  EXPECT_EQ(back->find("large")->as_unsigned(), UINT64_MAX);
  EXPECT_EQ(back->find("lowest")->as_integer(), INT64_MIN);
}

TEST(Msgpack, RefusesEveryTruncationAndWhatFollows) {
  const std::string bytes = to_msgpack(Json::Object{{"list", Json::Array{1, "two", 3.5}}});
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(parse_msgpack(std::string_view(bytes).substr(0, length))) << length;
  EXPECT_FALSE(parse_msgpack(bytes + "x"));
}

TEST(Msgpack, RefusesWhatIsTooDeepOrTooMuch) {
  Json nested;
  for (int i = 0; i < 80; ++i)
    nested = Json::Array{nested};
  EXPECT_FALSE(parse_msgpack(to_msgpack(nested)));
  EXPECT_FALSE(parse_msgpack(to_msgpack(Json::Array(9, Json(1))), {.values = 8}));
  EXPECT_FALSE(parse_msgpack("\xDF\xFF\xFF\xFF\xFF"));
  EXPECT_FALSE(parse_msgpack("\xDD\xFF\xFF\xFF\xFF"));
}

}  // namespace
}  // namespace dormouse

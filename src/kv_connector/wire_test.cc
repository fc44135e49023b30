#include "kv_connector/wire.h"

#include <gtest/gtest.h>

namespace dormouse {
namespace {

struct Inner {
  std::uint32_t number = 0;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("number", self.number);
  }
};

struct Outer {
  std::optional<std::uint32_t> slot;
  std::optional<Inner> inner;
  std::vector<Inner> list;
  template <class Io, class Self>
  static void fields(Io& io, Self& self) {
    io("slot", self.slot);
    io("inner", self.inner);
    io("list", self.list);
  }
};

Result<Outer> read(Json::Object object) {
  return decode_fields<Outer>(to_msgpack(Json(std::move(object))), "outer");
}

TEST(Wire, OptionalFieldsAreThereOrAbsent) {
  const auto full = decode_fields<Outer>(encode_fields(Outer{7, Inner{8}, {{9}}}), "outer");
  ASSERT_TRUE(full) << full.error().message;
  EXPECT_EQ(full->slot, 7U);
  EXPECT_EQ(full->inner->number, 8U);
  EXPECT_EQ(full->list.at(0).number, 9U);
  const auto bare = decode_fields<Outer>(encode_fields(Outer{}), "outer");
  ASSERT_TRUE(bare) << bare.error().message;
  EXPECT_FALSE(bare->slot || bare->inner);
}

TEST(Wire, OptionalFieldsThatAreThereAreRight) {
  EXPECT_TRUE(read({{"list", Json(Json::Array{})}, {"slot", 1}}));
  EXPECT_FALSE(read({{"list", Json(Json::Array{})}, {"slot", -1}}));
  EXPECT_FALSE(read({{"list", Json(Json::Array{})}, {"slot", nullptr}}));
  EXPECT_FALSE(read({{"list", Json(Json::Array{})}, {"inner", Json(Json::Object{})}}));
  EXPECT_EQ(read({{"slot", 1}}).error().message, "outer: field list is missing or wrong");
}

}  // namespace
}  // namespace dormouse

#include "kv_connector/pull/messages.h"

#include <gtest/gtest.h>

#include <functional>

#include "kv_connector/pull/orders.h"

namespace dormouse::pull {
namespace {

RankMetadata rank_metadata() {
  return {.rank = 1,
          .num_blocks = 9,
          .generation = 4,
          .shape = {.num_layers = 2,
                    .num_kv_heads = 4,
                    .first_kv_head = 2,
                    .last_kv_head = 4,
                    .head_dim = 8,
                    .block_size = 16}};
}

Orders orders() {
  Orders all;
  const RemoteReference from{"engine", "first", 3, {"7", "token"}, "host", 99, {1, 2}, 8};
  all.leases.push_back({5, "token", "weights", {1, 2, 3}, "prompt"});
  all.pulls.push_back({6, from, {4, 5}, 3, 8, "weights", "prompt"});
  all.cancels.push_back(7);
  all.releases.push_back({8, from});
  all.heartbeats.push_back({9, from});
  return all;
}

template <class Message>
std::string encoded(const Message& message) {
  return encode_message(message, 3);
}
std::string encoded(const Orders& message) {
  return encode_orders(message);
}

template <class Message>
Result<std::string> read_again(std::string_view bytes) {
  if constexpr (std::is_same_v<Message, Orders>) {
    DM_TRY_ASSIGN(const Orders read, decode_orders(bytes));
    return encode_orders(read);
  } else if constexpr (std::is_same_v<Message, RankMetadata>) {
    DM_TRY_ASSIGN(const RankMetadata read, decode_rank_metadata(bytes));
    return encode_message(read, 3);
  } else {
    DM_TRY_ASSIGN(const auto read, AnyMessage<Message>::decode(bytes));
    return encode_message(std::get<Message>(read.body), read.id);
  }
}

// Replaces, or removes, the value at one place of the tree after the other.
void each_damage(const Json& value, const std::function<void(const Json&)>& visit) {
  for (const Json& wrong : {Json(), Json(-1), Json(1.5), Json(Json::Array{Json(Json::Object{})}),
                            Json(Json::Object{{"x", 1}})})
    visit(wrong);
  if (const auto* members = value.object()) {
    for (std::size_t i = 0; i < members->size(); ++i) {
      Json::Object fewer = *members;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      visit(Json(std::move(fewer)));
      each_damage((*members)[i].second, [&](const Json& damaged) {
        Json::Object changed = *members;
        changed[i].second = damaged;
        visit(Json(std::move(changed)));
      });
    }
  }
  if (const auto* items = value.array(); items != nullptr && !items->empty()) {
    each_damage((*items)[0], [&](const Json& damaged) {
      Json::Array changed = *items;
      changed[0] = damaged;
      visit(Json(std::move(changed)));
    });
  }
}

template <class Message>
void expect_strict(const Message& message) {
  const std::string bytes = encoded(message);
  const auto again = read_again<Message>(bytes);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(*again, bytes);
  const std::size_t shortest = std::is_same_v<Message, Orders> ? 1 : 0;  // no orders are no bytes
  for (std::size_t size = shortest; size < bytes.size(); ++size)
    EXPECT_FALSE(read_again<Message>(std::string_view(bytes).substr(0, size))) << size;
  EXPECT_FALSE(read_again<Message>(bytes + "x"));
  each_damage(*parse_msgpack(bytes), [](const Json& damaged) {
    EXPECT_FALSE(read_again<Message>(to_msgpack(damaged))) << damaged.dump();
  });
}

TEST(PullMessages, EachIsReadAsWrittenAndRefusedWhenCutOrDamaged) {
  expect_strict(Unavailable{"asleep"});
  expect_strict(Malformed{"what?"});
  expect_strict(Import{"consumer"});
  expect_strict(Memory{"first", 3, std::string("\0\xff", 2)});
  expect_strict(Pull{{"7", "token"}, "first", 3, "weights", {1, 2}, 5, {0, 4}, true, "prompt"});
  expect_strict(Granted{5, {6, ~std::uint64_t{0}}});
  expect_strict(Refused{"token", "first", 3});
  expect_strict(Pulled{{"7", "token"}, 5});
  expect_strict(Confirmed{true});
  expect_strict(Heartbeat{{{"7", "token"}, {"8", "other"}}});
  expect_strict(Release{{"7", "token"}, {0, 1}});
  expect_strict(Revoke{3});
  expect_strict(Revoked{3});
  expect_strict(Meta{1, "engine", "first", 3, "weights", 1, {"rank"}});
  expect_strict(rank_metadata());
  expect_strict(orders());
}

TEST(PullMessages, NoOrdersAreNoBytes) {
  EXPECT_EQ(encode_orders({}), "");
  EXPECT_TRUE(decode_orders("")->empty());
}

TEST(PullMessages, NumbersBeyondTheirTypeAreRefused) {
  const auto cut = [](std::uint64_t head) {
    return AnyMessage<Release>::decode(to_msgpack(
        Json(Json::Object{{"type", "release"},
                          {"id", 1},
                          {"name", Json(Json::Object{{"lease", "7"}, {"token", "t"}})},
                          {"heads", Json(Json::Object{{"first", head}, {"last", 1}})}})));
  };
  EXPECT_TRUE(cut(0xFFFFFFFF));
  EXPECT_FALSE(cut(0x100000000));
}

TEST(PullMessages, OverlongTextIsRefused) {
  EXPECT_TRUE(AnyMessage<Import>::decode(encoded(Import{std::string(kMaxTextBytes, 'x')})));
  EXPECT_FALSE(AnyMessage<Import>::decode(encoded(Import{std::string(kMaxTextBytes + 1, 'x')})));
}

TEST(PullMessages, OnlyMessagesThatBelongHereAreRead) {
  EXPECT_FALSE((AnyMessage<Pulled, Release>::decode(encoded(Import{"x"}))));
  EXPECT_TRUE((AnyMessage<Pulled, Import>::decode(encoded(Import{"x"}))));
}

TEST(PullMessages, RankThatHoldsNothingOrTooMuchIsRefused) {
  EXPECT_TRUE(decode_rank_metadata(encoded(rank_metadata())));
  const auto refused = [](const std::function<void(RankMetadata&)>& change) {
    RankMetadata rank = rank_metadata();
    change(rank);
    return !decode_rank_metadata(encoded(rank));
  };
  EXPECT_TRUE(refused([](RankMetadata& rank) { rank.num_blocks = 0; }));
  EXPECT_TRUE(refused([](RankMetadata& rank) { rank.shape.num_layers = 0; }));
  EXPECT_TRUE(refused([](RankMetadata& rank) { rank.shape.head_dim = 0; }));
  EXPECT_TRUE(refused([](RankMetadata& rank) { rank.shape.block_size = 0; }));
  EXPECT_TRUE(refused([](RankMetadata& rank) { rank.shape.first_kv_head = 4; }));
  EXPECT_TRUE(refused([](RankMetadata& rank) { rank.shape.last_kv_head = 5; }));
  EXPECT_TRUE(refused([](RankMetadata& rank) {
    rank.num_blocks = rank.shape.num_layers = rank.shape.head_dim = 0xFFFFFFFF;
  }));
}

}  // namespace
}  // namespace dormouse::pull

#include "router/instance_pool.h"

#include <gtest/gtest.h>

namespace dormouse::router {
namespace {

// Two decode instances; the second of them alone has a connector.
class PullersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const std::size_t index : {kNone, kPuller})
      pool_.set_state(index, InstanceState::kReady, "");
    pool_.set_connector(kNone, false);
    pool_.set_connector(kPuller, true);
  }
  std::size_t take(Choice choice) { return pool_.take(Role::kDecode, choice, {}).index(); }

  static constexpr std::size_t kNone = 1;
  static constexpr std::size_t kPuller = 2;
  InstancePool pool_{{{.role = Role::kPrefill}, {.role = Role::kDecode}, {.role = Role::kDecode}}};
};

TEST_F(PullersTest, WhatThereIsToPullGoesToWhoCan) {
  EXPECT_EQ(take(Choice::kAnyIfNoneIsReady), kNone);
  const auto busy = pool_.take(Role::kDecode, Choice::kPullersFirst, {});
  EXPECT_EQ(busy.index(), kPuller);
  EXPECT_EQ(take(Choice::kPullersFirst), kPuller) << "though it has more to do";
  EXPECT_EQ(take(Choice::kAnyIfNoneIsReady), kNone);
}

TEST_F(PullersTest, ThoseThatAreReadyComeFirstAllTheSame) {
  pool_.set_state(kPuller, InstanceState::kAsleep, "");
  EXPECT_EQ(take(Choice::kPullersFirst), kNone);
}

}  // namespace
}  // namespace dormouse::router

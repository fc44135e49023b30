#include "router/health.h"

#include <gtest/gtest.h>

#include "testing/silent_server.h"

namespace dormouse::router {
namespace {

using Clock = std::chrono::steady_clock;

TEST(Health, IsNotWaitedForLongerThanTwoSecondsNorOnceCancelled) {
  testing::SilentServer hangs(4);  // takes the call
  testing::SilentServer full(0);   // takes no connection
  full.fill();
  Cancellation cancellation;
  for (const testing::SilentServer* server : {&hangs, &full}) {
    const auto before = Clock::now();
    EXPECT_EQ(ask_health(server->address(), "", cancellation).state, InstanceState::kGone);
    EXPECT_LT(Clock::now() - before, std::chrono::milliseconds(3'500));
  }
  cancellation.cancel();
  const auto before = Clock::now();
  EXPECT_EQ(ask_health(full.address(), "", cancellation).state, InstanceState::kGone);
  EXPECT_LT(Clock::now() - before, std::chrono::seconds(1));
}

}  // namespace
}  // namespace dormouse::router

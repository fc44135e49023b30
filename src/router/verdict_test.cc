#include "router/verdict.h"

#include <gtest/gtest.h>

namespace dormouse::router {
namespace {

LegAnswer answered(int status, std::string body = "{}") {
  return {.response = {.status = status, .body = std::move(body)}, .with_params = true};
}

LegAnswer broken(ErrorCode code, int status = 0) {
  return {.transport = fail(code, "why"), .response = {.status = status}};
}

struct Case {
  const char* name;
  LegAnswer answer;
  Action prefill;
  Action decode;
  bool failed = false;
  std::optional<InstanceState> state = std::nullopt;
};

constexpr const char* kRefusedParams =
    R"({"error":{"message":"no","param":"kv_transfer_params.remote_host"}})";

// The table in docs/router.md.
TEST(Verdict, OfEveryAnswer) {
  const Case cases[] = {
      {"kept", answered(200, R"({"kv_transfer_params":{"a":1}})"), Action::kDecode, Action::kReply},
      {"nothing kept", answered(200), Action::kTryNext, Action::kReply},
      {"bad", answered(422), Action::kReply, Action::kReply},
      {"key", answered(401), Action::kTryNext, Action::kTryNext, true, InstanceState::kLocked},
      {"asleep", answered(503), Action::kTryNext, Action::kTryNext, true, InstanceState::kAsleep},
      {"params", answered(400, kRefusedParams), Action::kTryNext, Action::kComputeLocally},
      {"no connection", broken(ErrorCode::kUnavailable), Action::kTryNext, Action::kTryNext, true,
       InstanceState::kGone},
      {"silent", broken(ErrorCode::kDeadlineExceeded), Action::kTryNext, Action::kReplyError, true},
      {"too long", broken(ErrorCode::kResourceExhausted, 200), Action::kTryNext,
       Action::kReplyError, true},
      {"half", broken(ErrorCode::kUnavailable, 200), Action::kTryNext, Action::kReplyError, true,
       InstanceState::kGone},
  };
  for (const Case& each : cases) {
    const Verdict prefill = judge(Role::kPrefill, each.answer);
    const Verdict decode = judge(Role::kDecode, each.answer);
    EXPECT_EQ(prefill.action, each.prefill) << each.name;
    EXPECT_EQ(decode.action, each.decode) << each.name;
    EXPECT_EQ(prefill.failed, each.failed) << each.name;
    EXPECT_EQ(decode.failed, each.failed) << each.name;
    EXPECT_EQ(prefill.state, each.state) << each.name;
    EXPECT_EQ(decode.state, each.state) << each.name;
  }
}

TEST(Verdict, AnOverloadedOrBrokenPrefillInstanceIsReplaced) {
  for (const int status : {429, 500, 502}) {
    EXPECT_EQ(judge(Role::kPrefill, answered(status)).action, Action::kTryNext) << status;
    EXPECT_TRUE(judge(Role::kPrefill, answered(status)).failed) << status;
    EXPECT_EQ(judge(Role::kPrefill, answered(status)).state, std::nullopt) << status;
    EXPECT_EQ(judge(Role::kDecode, answered(status)).action, Action::kReply) << status;
  }
}

TEST(Verdict, OnlyParamsThatWereSentCanBeRefused) {
  LegAnswer answer = answered(400, kRefusedParams);
  EXPECT_TRUE(judge(Role::kDecode, answer).misconfigured);
  answer.with_params = false;
  EXPECT_EQ(judge(Role::kDecode, answer).action, Action::kReply);
  EXPECT_FALSE(judge(Role::kDecode, answer).misconfigured);
}

TEST(Verdict, OfAStreamDependsOnWhatTheClientHas) {
  LegAnswer stream = answered(200);
  stream.is_stream = true;
  EXPECT_EQ(judge(Role::kDecode, stream).action, Action::kTryNext);
  stream.forwarded = true;
  EXPECT_EQ(judge(Role::kDecode, stream).action, Action::kBreakOff);
  EXPECT_EQ(judge(Role::kDecode, stream).state, InstanceState::kGone);
  stream.transport = fail(ErrorCode::kDeadlineExceeded, "no event for long");
  EXPECT_EQ(judge(Role::kDecode, stream).action, Action::kBreakOff);
  EXPECT_EQ(judge(Role::kDecode, stream).state, std::nullopt);
  stream.complete = true;
  stream.transport = fail(ErrorCode::kUnavailable, "after the last event");
  EXPECT_EQ(judge(Role::kDecode, stream).action, Action::kEndStream);
  EXPECT_FALSE(judge(Role::kDecode, stream).failed);
}

}  // namespace
}  // namespace dormouse::router

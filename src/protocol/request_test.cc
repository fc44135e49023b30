#include "dormouse/request.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace dormouse {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  const char* message;  // empty: accepted
  std::function<void(SamplingParams&)> change;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.message;
}

class Validate : public ::testing::TestWithParam<Case> {};

TEST_P(Validate, SaysWhatIsWrongAndWhere) {
  SamplingParams params;
  GetParam().change(params);
  const Status status = validate(params);
  const std::string message = GetParam().message;
  ASSERT_EQ(status.has_value(), message.empty());
  if (!status) {
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(status.error().message, message);
    EXPECT_EQ(status.error().param, message.substr(0, message.find(' ')));
  }
}

INSTANTIATE_TEST_SUITE_P(Bounds, Validate,
                         ::testing::
                             Values(
                                 Case{"", [](auto&) {}},
                                 Case{"", [](auto& p) { p.temperature = 0; }},
                                 Case{"", [](auto& p) { p.temperature = 100; }},
                                 Case{"temperature must be between 0 and 100, got -0.5",
                                      [](auto& p) { p.temperature = -0.5F; }},
                                 Case{"temperature must be between 0 and 100, got nan",
                                      [](auto& p) { p.temperature = kNan; }},
                                 Case{"temperature must be between 0 and 100, got inf",
                                      [](auto& p) { p.temperature = kInfinity; }},
                                 Case{"temperature must be between 0 and 100, got 100.5",
                                      [](auto& p) { p.temperature = 100.5F; }},
                                 Case{"", [](auto& p) { p.top_p = 1e-6F; }},
                                 Case{"top_p must be above 0 and at most 1, got 0",
                                      [](auto& p) { p.top_p = 0; }},
                                 Case{"top_p must be above 0 and at most 1, got 1.5",
                                      [](auto& p) { p.top_p = 1.5F; }},
                                 Case{"top_p must be above 0 and at most 1, got nan",
                                      [](auto& p) { p.top_p = kNan; }},
                                 Case{"",
                                      [](auto& p) {
                                        p.top_k = std::numeric_limits<std::int32_t>::max();
                                      }},
                                 Case{"top_k must be 0 (no limit) or more, got -1",
                                      [](auto& p) { p.top_k = -1; }},
                                 Case{"", [](auto& p) { p.min_p = 1; }},
                                 Case{"min_p must be between 0 and 1, got 1.25",
                                      [](auto& p) { p.min_p = 1.25F; }},
                                 Case{"min_p must be between 0 and 1, got nan",
                                      [](auto& p) { p.min_p = kNan; }},
                                 Case{"", [](auto& p) { p.presence_penalty = -2; }},
                                 Case{"presence_penalty must be between -2 and 2, got 2.5",
                                      [](auto& p) { p.presence_penalty = 2.5F; }},
                                 Case{"frequency_penalty must be between -2 and 2, got -2.5",
                                      [](auto& p) { p.frequency_penalty = -2.5F; }},
                                 Case{"frequency_penalty must be between -2 and 2, got nan",
                                      [](auto& p) { p.frequency_penalty = kNan; }},
                                 Case{"", [](auto& p) { p.repetition_penalty = 0.1F; }},
                                 Case{"repetition_penalty must be above 0 and finite, got 0",
                                      [](auto& p) { p.repetition_penalty = 0; }},
                                 Case{"repetition_penalty must be above 0 and finite, got inf",
                                      [](auto& p) { p.repetition_penalty = kInfinity; }},
                                 Case{"repetition_penalty must be above 0 and finite, got nan",
                                      [](auto& p) { p.repetition_penalty = kNan; }},
                                 Case{"",
                                      [](auto& p) {
                                        p.logit_bias = {{0, -100.0F}, {7, 100.0F}};
                                      }},
                                 Case{"logit_bias must be between -100 and 100, got 101",
                                      [](auto& p) {
                                        p.logit_bias = {{7, 101.0F}};
                                      }},
                                 Case{"logit_bias must be between -100 and 100, got nan",
                                      [](auto& p) {
                                        p.logit_bias = {{7, kNan}};
                                      }},
                                 Case{"logit_bias must be given for token ids from 0 on, got -1",
                                      [](auto& p) {
                                        p.logit_bias = {{-1, 1.0F}};
                                      }},
                                 Case{"logit_bias must be given for at most 1024 tokens, got 1025",
                                      [](auto& p) {
                                        for (int i = 0; i < 1025; ++i)
                                          p.logit_bias[i] = 1;
                                      }},
                                 Case{"max_tokens must be between 1 and 1073741824, got 0",
                                      [](auto& p) { p.max_tokens = 0; }},
                                 Case{"max_tokens must be between 1 and 1073741824, got 4294967295",
                                      [](auto& p) {
                                        p.max_tokens = std::numeric_limits<std::uint32_t>::max();
                                      }},
                                 Case{"", [](auto& p) { p.min_tokens = p.max_tokens; }},
                                 Case{"min_tokens must be at most max_tokens, 16, got 17",
                                      [](auto& p) { p.min_tokens = 17; }},
                                 Case{"", [](auto& p) { p.logprobs = 20; }},
                                 Case{"logprobs must be between 0 and 20, got 21",
                                      [](auto& p) { p.logprobs = 21; }},
                                 Case{"logprobs must be between 0 and 20, got -2",
                                      [](auto& p) { p.logprobs = -2; }},
                                 Case{"stop_token_ids must be token ids from 0 on, got -1",
                                      [](auto& p) {
                                        p.stop_token_ids = {3, -1};
                                      }},
                                 Case{"stop_token_ids must be at most 128 ids, got 129",
                                      [](auto& p) { p.stop_token_ids.resize(129); }}));

TEST(FinishReason, IsNamedAsInReplies) {
  EXPECT_EQ(to_string(FinishReason::kStop), "stop");
  EXPECT_EQ(to_string(FinishReason::kLength), "length");
  EXPECT_EQ(to_string(FinishReason::kAbort), "abort");
  EXPECT_EQ(to_string(FinishReason::kError), "error");
}

}  // namespace
}  // namespace dormouse

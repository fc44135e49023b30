#include "dormouse/request.h"

#include <fmt/core.h>

#include <cmath>

#include "base/check.h"

namespace dormouse {
namespace {

constexpr float kMaxTemperature = 100;
constexpr std::int32_t kMaxLogprobs = 20;
constexpr std::uint32_t kMaxTokens = 1U << 30;
constexpr std::size_t kMaxBiases = 1024;
constexpr std::size_t kMaxStopTokens = 128;

tl::unexpected<Error> refuse(std::string_view param, std::string_view allowed,
                             std::string_view given) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} must be {}, got {}", param, allowed, given), std::string(param));
}

Status check_between(std::string_view param, float value, float low, float high) {
  if (value >= low && value <= high)
    return {};
  return refuse(param, fmt::format("between {} and {}", low, high), fmt::format("{}", value));
}

Status check_bias(const std::map<TokenId, float>& biases) {
  if (biases.size() > kMaxBiases)
    return refuse("logit_bias", fmt::format("given for at most {} tokens", kMaxBiases),
                  fmt::format("{}", biases.size()));
  for (const auto& [token, bias] : biases) {
    if (token < 0)
      return refuse("logit_bias", "given for token ids from 0 on", fmt::format("{}", token));
    DM_TRY(check_between("logit_bias", bias, -100, 100));
  }
  return {};
}

Status check_lengths(const SamplingParams& params) {
  if (params.max_tokens < 1 || params.max_tokens > kMaxTokens)
    return refuse("max_tokens", fmt::format("between 1 and {}", kMaxTokens),
                  fmt::format("{}", params.max_tokens));
  if (params.min_tokens > params.max_tokens)
    return refuse("min_tokens", fmt::format("at most max_tokens, {}", params.max_tokens),
                  fmt::format("{}", params.min_tokens));
  if (params.logprobs < -1 || params.logprobs > kMaxLogprobs)
    return refuse("logprobs", fmt::format("between 0 and {}", kMaxLogprobs),
                  fmt::format("{}", params.logprobs));
  if (params.stop_token_ids.size() > kMaxStopTokens)
    return refuse("stop_token_ids", fmt::format("at most {} ids", kMaxStopTokens),
                  fmt::format("{}", params.stop_token_ids.size()));
  for (const TokenId token : params.stop_token_ids)
    if (token < 0)
      return refuse("stop_token_ids", "token ids from 0 on", fmt::format("{}", token));
  return {};
}

}  // namespace

Status validate(const SamplingParams& params) {
  DM_TRY(check_between("temperature", params.temperature, 0, kMaxTemperature));
  if (!(params.top_p > 0 && params.top_p <= 1))
    return refuse("top_p", "above 0 and at most 1", fmt::format("{}", params.top_p));
  if (params.top_k < 0)
    return refuse("top_k", "0 (no limit) or more", fmt::format("{}", params.top_k));
  DM_TRY(check_between("min_p", params.min_p, 0, 1));
  DM_TRY(check_between("presence_penalty", params.presence_penalty, -2, 2));
  DM_TRY(check_between("frequency_penalty", params.frequency_penalty, -2, 2));
  if (!(params.repetition_penalty > 0 && std::isfinite(params.repetition_penalty)))
    return refuse("repetition_penalty", "above 0 and finite",
                  fmt::format("{}", params.repetition_penalty));
  DM_TRY(check_bias(params.logit_bias));
  return check_lengths(params);
}

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

}  // namespace dormouse

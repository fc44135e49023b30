#include "router/verdict.h"

#include <fmt/core.h>

#include "base/json.h"
#include "router/legs.h"

namespace dormouse::router {
namespace {

using server::HttpResponse;

constexpr const char* kBrokenOff = "the decode instance broke off its answer";

std::string error_member(const HttpResponse& response, std::string_view name) {
  const auto body = parse_json(response.body);
  const Json* error = body ? body->find("error") : nullptr;
  const Json* value = error != nullptr ? error->find(name) : nullptr;
  return value != nullptr && value->string() != nullptr ? *value->string() : "";
}

std::string words_of(const HttpResponse& response) {
  const std::string message = error_member(response, "message");
  return message.empty() ? fmt::format("it answers {}", response.status) : message;
}

// An answer that takes too long, or is, says nothing of the next one.
std::optional<InstanceState> state_after(const Error& error) {
  const bool too_much =
      error.code == ErrorCode::kDeadlineExceeded || error.code == ErrorCode::kResourceExhausted;
  return too_much ? std::nullopt : std::optional(InstanceState::kGone);
}

// Of a leg that brought no answer, or only the beginning of one.
Verdict judge_failed_call(Role role, const LegAnswer& answer, const Error& error) {
  Verdict verdict{.action = Action::kTryNext,
                  .failed = true,
                  .state = state_after(error),
                  .cause = error.message};
  if (role == Role::kPrefill)
    return verdict;
  if (error.code == ErrorCode::kDeadlineExceeded) {
    verdict.action = Action::kReplyError;
    verdict.error = 504;
    verdict.message = "the decode instance did not answer in time";
  } else if (error.code == ErrorCode::kResourceExhausted ||
             (answer.response.status != 0 && !answer.is_stream)) {
    verdict.action = Action::kReplyError;
    verdict.error = 502;
    verdict.message = kBrokenOff;
  }
  return verdict;
}

}  // namespace

Verdict judge(Role role, const LegAnswer& answer) {
  const HttpResponse& response = answer.response;
  if (answer.forwarded && answer.complete)
    return {.action = Action::kEndStream};
  if (answer.forwarded) {
    const Error error =
        answer.transport ? Error{.message = "it ended a stream early"} : answer.transport.error();
    return {.action = Action::kBreakOff,
            .failed = true,
            .state = state_after(error),
            .cause = error.message,
            .error = 502,
            .message = kBrokenOff};
  }
  if (!answer.transport)
    return judge_failed_call(role, answer, answer.transport.error());
  if (answer.is_stream)
    return {.action = Action::kTryNext,
            .failed = true,
            .state = InstanceState::kGone,
            .cause = "it ended a stream without an event"};
  if (response.status == 401)
    return {.action = Action::kTryNext,
            .failed = true,
            .state = InstanceState::kLocked,
            .cause = kLockedCause};
  if (response.status == 503)
    return {.action = Action::kTryNext,
            .failed = true,
            .state = InstanceState::kAsleep,
            .cause = words_of(response)};
  if (response.status == 400 && answer.with_params &&
      error_member(response, "param").starts_with("kv_transfer_params"))
    return {.action = role == Role::kDecode ? Action::kComputeLocally : Action::kTryNext,
            .misconfigured = true,
            .cause = words_of(response)};
  if (role == Role::kDecode)
    return {.action = Action::kReply};
  if (response.status == 429 || response.status >= 500)
    return {.action = Action::kTryNext, .failed = true};
  if (response.status != 200)
    return {.action = Action::kReply};
  const bool kept = !kv_transfer_params_of(response.body).is_null();
  return {.action = kept ? Action::kDecode : Action::kTryNext};
}

}  // namespace dormouse::router

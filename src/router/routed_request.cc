#include "router/routed_request.h"

#include <fmt/core.h>

#include "base/log.h"
#include "router/event_relay.h"
#include "router/legs.h"
#include "server/replies.h"

namespace dormouse::router {
namespace {

using server::HttpResponse;

void note(InstancePool::Turn& turn, const Verdict& verdict) {
  if (verdict.failed)
    turn.failed(verdict.state, verdict.cause);
  if (verdict.misconfigured)
    turn.refused_params(verdict.cause);
}

HttpResponse pass_on(HttpResponse response) {
  std::erase_if(response.headers, [](const auto& header) { return header.first != "retry-after"; });
  return response;
}

}  // namespace

RoutedRequest::RoutedRequest(const Backends& backends, server::HttpRequest request,
                             std::shared_ptr<server::ResponseWriter> writer,
                             Cancellation& cancellation)
    : backends_(backends),
      request_(std::move(request)),
      writer_(std::move(writer)),
      cancellation_(cancellation),
      id_(make_request_id(request_.header("x-request-id"))) {}

void RoutedRequest::run() {
  const auto body = parse_json(request_.body);
  if (!body)
    return writer_->reply(server::error_response(body.error(), server::Audience::kUser));
  if (body->object() == nullptr)
    return writer_->reply(server::error_response(400, "the body must be a JSON object", "body"));
  if (const Json* params = body->find("kv_transfer_params");
      params != nullptr && !params->is_null())
    return writer_->reply(server::error_response(
        400, "kv_transfer_params: a request may not name peers; the router chooses them",
        "kv_transfer_params"));
  ++backends_.totals.requests;
  // Blocks that a prefill leg keeps stay leased for a while: none for who cannot fetch them.
  if (!backends_.pool.any_ready(Role::kDecode) && !backends_.poller.finds_ready(Role::kDecode))
    return reply_no_decode_instance();
  Json params;
  if (!has_several_prompts(*body) && prefill(*body, params) == Outcome::kAnswered)
    return;
  if (params.is_null()) {
    ++backends_.totals.local_computations;
    return decode(std::nullopt);
  }
  decode(decode_body(*body, params));
}

RoutedRequest::Outcome RoutedRequest::prefill(const Json& request, Json& params) {
  const std::string body = prefill_body(request);
  std::vector<std::size_t> tried;
  while (InstancePool::Turn turn = backends_.pool.take(Role::kPrefill, Choice::kReadyOnly, tried)) {
    if (!tried.empty())
      ++backends_.totals.retries;
    tried.push_back(turn.index());
    ++backends_.totals.prefill_legs;
    LegAnswer answer = send(Role::kPrefill, turn, body);
    answer.with_params = true;
    if (cancellation_.cancelled())
      return Outcome::kAnswered;
    const Verdict verdict = judge(Role::kPrefill, answer);
    note(turn, verdict);
    if (verdict.action == Action::kReply) {
      writer_->reply(pass_on(std::move(answer.response)));
      return Outcome::kAnswered;
    }
    if (verdict.action == Action::kDecode) {
      params = kv_transfer_params_of(answer.response.body);
      keepers_ = backends_.pool.decoders_at(turn.address());
      break;
    }
  }
  return Outcome::kTryNext;
}

void RoutedRequest::decode(const std::optional<std::string>& body) {
  const Choice choice = body ? Choice::kPullersFirst : Choice::kAnyIfNoneIsReady;
  std::vector<std::size_t> tried = body ? keepers_ : std::vector<std::size_t>();
  while (InstancePool::Turn turn = backends_.pool.take(Role::kDecode, choice, tried)) {
    if (cancellation_.cancelled())
      return;
    if (!tried.empty())
      ++backends_.totals.retries;
    tried.push_back(turn.index());
    const bool locally = body && !turn.takes_params();
    backends_.totals.local_computations += locally ? 1 : 0;
    if (decode_on(turn, locally ? std::nullopt : body) == Outcome::kAnswered)
      return;
  }
  if (!std::exchange(keepers_, {}).empty()) {
    ++backends_.totals.local_computations;
    return decode(std::nullopt);
  }
  reply_no_decode_instance();
}

RoutedRequest::Outcome RoutedRequest::decode_on(InstancePool::Turn& turn,
                                                const std::optional<std::string>& body) {
  LegAnswer answer = send(Role::kDecode, turn, body ? *body : request_.body);
  answer.with_params = body.has_value();
  if (cancellation_.cancelled())
    return Outcome::kAnswered;
  const Verdict verdict = judge(Role::kDecode, answer);
  note(turn, verdict);
  switch (verdict.action) {
    case Action::kTryNext:
      return Outcome::kTryNext;
    case Action::kComputeLocally:
      ++backends_.totals.local_computations;
      return decode_on(turn, std::nullopt);
    case Action::kReplyError:
      writer_->reply(server::error_response(verdict.error, verdict.message));
      break;
    case Action::kBreakOff:
      log(LogLevel::kWarning, "router", "stream broken off request={} cause=\"{}\"", id_,
          verdict.cause);
      writer_->write(fmt::format("data: {}\n\ndata: [DONE]\n\n",
                                 server::error_body(verdict.error, verdict.message, "").dump()));
      writer_->finish();
      break;
    case Action::kEndStream:
      writer_->finish();
      break;
    case Action::kReply:
    case Action::kDecode:
      writer_->reply(pass_on(std::move(answer.response)));
  }
  return Outcome::kAnswered;
}

LegAnswer RoutedRequest::send(Role role, const InstancePool::Turn& turn, const std::string& body) {
  const bool is_decode = role == Role::kDecode;
  LegAnswer answer;
  EventRelay relay;
  const auto on_head = [&](const HttpResponse& head) {
    answer.response = head;
    answer.is_stream = is_decode && is_event_stream(head);
  };
  const auto on_body = [&](std::string_view part) {
    if (!answer.is_stream) {
      answer.response.body += part;
      return true;
    }
    std::string events = relay.take(part);
    answer.complete = relay.done();
    if (events.empty())
      return !relay.is_too_long();
    if (!std::exchange(answer.forwarded, true))
      writer_->start_stream({.content_type = answer.response.content_type});
    writer_->write(std::move(events));
    return !relay.is_too_long();
  };
  const Leg leg{.path = request_.path,
                .body = body,
                .request_id = id_,
                .api_key = backends_.api_key,
                .timeout = is_decode ? backends_.decode_timeout : backends_.prefill_timeout,
                .may_be_long = is_decode};
  if (const auto call = send_leg(turn.address(), leg, cancellation_, on_head, on_body); !call)
    answer.transport = tl::unexpected(call.error());
  if (relay.is_too_long())
    answer.transport = fail(ErrorCode::kResourceExhausted, "it sent an event without end");
  return answer;
}

void RoutedRequest::reply_no_decode_instance() {
  std::string states;
  bool all_locked = true;
  for (const Instance& instance : backends_.pool.snapshot()) {
    if (instance.role != Role::kDecode)
      continue;
    all_locked = all_locked && instance.state == InstanceState::kLocked;
    states += fmt::format("{} {} is {} ({})", states.empty() ? "" : ",", instance.url,
                          to_string(instance.state), instance.cause);
  }
  writer_->reply(all_locked ? server::error_response(502, kLockedCause)
                            : server::error_response(
                                  503, "no decode instance can take the request:" + states));
}

}  // namespace dormouse::router

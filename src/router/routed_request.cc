#include "router/routed_request.h"

#include <fmt/core.h>

#include "base/log.h"
#include "router/legs.h"
#include "server/replies.h"

namespace dormouse::router {
namespace {

using server::HttpResponse;

// An instance that does not serve says so in one of these ways; other answers are the client's.
bool is_refusal(int status) {
  return status == 429 || status >= 500;
}

std::string cause_of(const HttpResponse& response) {
  const auto body = parse_json(response.body);
  const Json* error = body ? body->find("error") : nullptr;
  const Json* message = error != nullptr ? error->find("message") : nullptr;
  return message != nullptr && message->string() != nullptr
             ? *message->string()
             : fmt::format("it answers {}", response.status);
}

void refused(InstancePool::Turn& turn, const HttpResponse& response) {
  if (response.status == 503)
    turn.failed(InstanceState::kAsleep, cause_of(response));
  else
    turn.failed(InstanceState::kReady, "");
}

HttpResponse pass_on(HttpResponse response) {
  std::erase_if(response.headers, [](const auto& header) { return header.first != "retry-after"; });
  return response;
}

}  // namespace

struct RoutedRequest::DecodeAnswer {
  HttpResponse response;
  bool begun = false;  // the head has arrived
  bool is_stream = false;
  bool forwarded = false;  // the client has got some of it
  EventRelay relay;
};

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
  Json params;
  if (!has_several_prompts(*body) && !prefill(*body, params))
    return;
  if (params.is_null())
    ++backends_.totals.local_computations;
  decode(params.is_null() ? request_.body : decode_body(*body, params));
}

bool RoutedRequest::prefill(const Json& request, Json& params) {
  const std::string body = prefill_body(request);
  const Leg leg{.path = request_.path,
                .body = body,
                .request_id = id_,
                .api_key = backends_.api_key,
                .timeout = backends_.prefill_timeout};
  std::vector<std::size_t> tried;
  while (InstancePool::Turn turn = backends_.pool.take(Role::kPrefill, Choice::kReadyOnly, tried)) {
    if (!tried.empty())
      ++backends_.totals.retries;
    tried.push_back(turn.index());
    ++backends_.totals.prefill_legs;
    std::string received;
    auto answer = send_leg(turn.address(), leg, cancellation_, {}, [&](std::string_view part) {
      received += part;
      return true;
    });
    if (cancellation_.cancelled())
      return false;
    if (!answer) {
      turn.failed(InstanceState::kGone, answer.error().message);
      continue;
    }
    answer->body = std::move(received);
    if (is_refusal(answer->status)) {
      refused(turn, *answer);
      continue;
    }
    if (answer->status != 200) {
      writer_->reply(pass_on(std::move(*answer)));
      return false;
    }
    params = kv_transfer_params_of(answer->body);
    if (!params.is_null())
      return true;
  }
  return true;
}

void RoutedRequest::decode(const std::string& body) {
  std::vector<std::size_t> tried;
  while (InstancePool::Turn turn =
             backends_.pool.take(Role::kDecode, Choice::kAnyIfNoneIsReady, tried)) {
    if (cancellation_.cancelled())
      return;
    if (!tried.empty())
      ++backends_.totals.retries;
    tried.push_back(turn.index());
    if (decode_on(turn, body))
      return;
  }
  reply_no_decode_instance();
}

bool RoutedRequest::decode_on(InstancePool::Turn& turn, const std::string& body) {
  DecodeAnswer answer;
  const Leg leg{.path = request_.path,
                .body = body,
                .request_id = id_,
                .api_key = backends_.api_key,
                .timeout = backends_.decode_timeout};
  const auto on_head = [&](const HttpResponse& head) {
    answer.response = head;
    answer.begun = true;
    answer.is_stream = head.status == 200 && head.content_type.starts_with("text/event-stream");
  };
  const auto on_body = [&](std::string_view part) {
    if (!answer.is_stream) {
      answer.response.body += part;
      return true;
    }
    std::string events = answer.relay.take(part);
    if (events.empty())
      return true;
    if (!std::exchange(answer.forwarded, true))
      writer_->start_stream({.content_type = answer.response.content_type});
    writer_->write(std::move(events));
    return true;
  };
  const auto call = send_leg(turn.address(), leg, cancellation_, on_head, on_body);
  if (cancellation_.cancelled())
    return true;
  const Status status = call ? Status() : tl::unexpected(call.error());
  if (answer.forwarded)
    return end_stream(turn, status, answer.relay.done());
  if (!status || answer.is_stream) {
    const std::string cause =
        status ? "it ended a stream without an event" : status.error().message;
    turn.failed(InstanceState::kGone, cause);
    if (!status && status.error().code == ErrorCode::kDeadlineExceeded) {
      writer_->reply(server::error_response(504, "the decode instance did not answer in time"));
      return true;
    }
    if (answer.begun && !answer.is_stream) {
      writer_->reply(server::error_response(502, "the decode instance broke off its answer"));
      return true;
    }
    return false;
  }
  if (answer.response.status == 503) {
    refused(turn, answer.response);
    return false;
  }
  writer_->reply(pass_on(std::move(answer.response)));
  return true;
}

bool RoutedRequest::end_stream(InstancePool::Turn& turn, const Status& call, bool complete) {
  if (!complete) {
    const std::string cause = call ? "it ended a stream early" : call.error().message;
    log(LogLevel::kWarning, "router", "stream broken off request={} cause=\"{}\"", id_, cause);
    turn.failed(InstanceState::kGone, cause);
    const Json error = server::error_body(502, "the decode instance broke off its answer", "");
    writer_->write(fmt::format("data: {}\n\ndata: [DONE]\n\n", error.dump()));
  }
  writer_->finish();
  return true;
}

void RoutedRequest::reply_no_decode_instance() {
  std::string states;
  for (const Instance& instance : backends_.pool.snapshot()) {
    if (instance.role == Role::kDecode)
      states += fmt::format("{} {} is {} ({})", states.empty() ? "" : ",", instance.url,
                            to_string(instance.state), instance.cause);
  }
  writer_->reply(server::error_response(503, "no decode instance can take the request:" + states));
}

}  // namespace dormouse::router

#include "router/legs.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/check.h"
#include "base/secret.h"

namespace dormouse::router {
namespace {

constexpr std::chrono::milliseconds kConnectTimeout{2'000};
constexpr std::uint64_t kMaxAnswerBytes = 64 << 20;
constexpr std::size_t kMaxClientIdBytes = 128;
constexpr std::string_view kParams = "kv_transfer_params";

// Of the whole answer, or of more tokens than one: not for a prefill leg.
constexpr std::string_view kNotForPrefill[] = {
    "stream",  "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "n",
    "best_of", "echo",           kParams};

bool is_plain(std::string_view id) {
  return !id.empty() && id.size() <= kMaxClientIdBytes && std::ranges::all_of(id, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

}  // namespace

bool is_event_stream(const server::HttpResponse& response) {
  return response.status == 200 && response.content_type.starts_with("text/event-stream");
}

server::HeaderList authorization(std::string_view api_key) {
  if (api_key.empty())
    return {};
  return {{"Authorization", fmt::format("Bearer {}", api_key)}};
}

std::string make_request_id(std::string_view client_id) {
  return is_plain(client_id) ? fmt::format("{}-{}", client_id, random_hex(8)) : random_hex(16);
}

bool has_several_prompts(const Json& request) {
  const Json* prompt = request.find("prompt");
  const auto* items = prompt == nullptr ? nullptr : prompt->array();
  return items != nullptr && items->size() > 1 && !items->front().is_number();
}

std::string prefill_body(const Json& request) {
  Json body = Json::Object();
  for (const auto& [name, value] : *request.object()) {
    if (std::ranges::find(kNotForPrefill, name) == std::end(kNotForPrefill))
      body.add(name, value);
  }
  body.add("stream", false).add("n", 1).add("max_tokens", 1);
  const Json* completion_tokens = request.find("max_completion_tokens");
  if (completion_tokens != nullptr && !completion_tokens->is_null())
    body.add("max_completion_tokens", 1);
  Json params;
  params.add("do_remote_decode", true).add("do_remote_prefill", false);
  for (const char* name : {"remote_engine_id", "remote_block_ids", "remote_host", "remote_port"})
    params.add(name, nullptr);
  return body.add(std::string(kParams), std::move(params)).dump();
}

std::string decode_body(const Json& request, const Json& kv_transfer_params) {
  Json body = Json::Object();
  for (const auto& [name, value] : *request.object()) {
    if (name != kParams)
      body.add(name, value);
  }
  return body.add(std::string(kParams), kv_transfer_params).dump();
}

Json kv_transfer_params_of(std::string_view answer) {
  const auto body = parse_json(answer);
  const Json* params = body ? body->find(kParams) : nullptr;
  return params != nullptr && params->object() != nullptr ? *params : Json();
}

Result<server::HttpResponse> send_leg(const server::Address& address, const Leg& leg,
                                      Cancellation& cancellation,
                                      const server::HttpClient::HeadSink& head,
                                      const server::HttpClient::BodySink& body) {
  server::HttpClient client;
  const Cancellation::Watch watch(cancellation, client);
  DM_TRY(client.open(address, kConnectTimeout));
  client.set_timeout(leg.timeout);
  if (leg.timeout > std::chrono::milliseconds(0))
    client.set_deadline(std::chrono::steady_clock::now() + leg.timeout);
  client.set_max_body_bytes(kMaxAnswerBytes);
  server::HeaderList headers = authorization(leg.api_key);
  headers.emplace_back("X-Request-Id", leg.request_id);
  const auto on_head = [&](const server::HttpResponse& response) {
    if (leg.may_be_long)
      client.set_deadline(std::nullopt);
    if (is_event_stream(response))
      client.set_max_body_bytes(std::numeric_limits<std::uint64_t>::max());
    head(response);
  };
  return client.stream("POST", leg.path, leg.body, headers, on_head, body);
}

}  // namespace dormouse::router

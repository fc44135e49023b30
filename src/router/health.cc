#include "router/health.h"

#include <fmt/core.h>

#include "base/check.h"
#include "base/json.h"
#include "router/legs.h"

namespace dormouse::router {
namespace {

constexpr std::chrono::milliseconds kTimeout{2'000};

std::string text_of(const Json* value) {
  return value != nullptr && value->string() != nullptr ? *value->string() : std::string();
}

Result<server::HttpResponse> ask(const server::Address& address, const std::string& api_key,
                                 Cancellation& cancellation, std::string_view target) {
  server::HttpClient client;
  const Cancellation::Watch watch(cancellation, client);
  client.set_deadline(std::chrono::steady_clock::now() + kTimeout);
  client.set_max_body_bytes(1 << 20);
  DM_TRY(client.open(address, kTimeout));
  return client.call("GET", target, {}, authorization(api_key));
}

}  // namespace

Health ask_health(const server::Address& address, const std::string& api_key,
                  Cancellation& cancellation) {
  const auto response = ask(address, api_key, cancellation, "/health/ready");
  if (!response)
    return {InstanceState::kGone, response.error().message};
  if (response->status == 200)
    return {InstanceState::kReady};
  if (response->status == 401)
    return {InstanceState::kLocked, kLockedCause};
  const auto body = parse_json(response->body);
  const std::string state = body ? text_of(body->find("state")) : "";
  if (response->status != 503 || state.empty())
    return {InstanceState::kGone,
            fmt::format("it answers {} to GET /health/ready", response->status)};
  const std::string reason = text_of(body->find("reason"));
  if (state == "starting" || state == "loading")
    return {InstanceState::kLoading, reason};
  const bool leaves = state == "draining" || state == "failed";
  return {leaves ? InstanceState::kGone : InstanceState::kAsleep, reason};
}

std::optional<bool> ask_connector(const server::Address& address, const std::string& api_key,
                                  Cancellation& cancellation) {
  const auto response = ask(address, api_key, cancellation, "/status");
  const auto body = response && response->status == 200 ? parse_json(response->body) : Json();
  const Json* transfer = body ? body->find("kv_transfer") : nullptr;
  return transfer == nullptr ? std::nullopt : std::optional(!transfer->is_null());
}

}  // namespace dormouse::router

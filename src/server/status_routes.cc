#include "server/status_routes.h"

#include <fmt/core.h>

#include "server/replies.h"

namespace dormouse::server {

std::string_view next_call(const EngineStatus& status) {
  switch (status.state) {
    case EngineState::kAsleep:
    case EngineState::kDegraded:
      return "POST /wake_up";
    case EngineState::kPaused:
      return status.weights_valid ? "POST /resume" : "POST /reload_weights";
    default:
      return "";
  }
}

std::string not_ready_reason(const EngineStatus& status) {
  const auto with_cause = [&](std::string_view text) {
    return status.cause.empty() ? std::string(text) : fmt::format("{}: {}", text, status.cause);
  };
  switch (status.state) {
    case EngineState::kStarting:
      return with_cause("the engine is starting");
    case EngineState::kLoading:
      return with_cause(
          fmt::format("the model is being loaded ({:.0f} %)", status.load_progress * 100));
    case EngineState::kPausing:
      return "the engine is about to pause";
    case EngineState::kPaused:
      return status.weights_valid ? "the engine is paused; POST /resume"
                                  : "the weights are not loaded; POST /reload_weights";
    case EngineState::kSleeping:
      return "the engine is falling asleep";
    case EngineState::kAsleep:
      return fmt::format("the engine is asleep at level {}; POST /wake_up", status.sleep_level);
    case EngineState::kWaking:
      return "the engine is waking up";
    case EngineState::kDraining:
      return "the server is shutting down";
    case EngineState::kDegraded:
      return with_cause("the last transition failed; POST /wake_up tries again");
    case EngineState::kFailed:
      return with_cause("the engine has failed");
    case EngineState::kRunning:
      break;
  }
  return status.accepts_requests ? "" : with_cause("the engine takes no requests now");
}

HttpResponse health(const EngineStatus& status) {
  const bool unhealthy =
      status.state == EngineState::kStarting || status.state == EngineState::kLoading ||
      status.state == EngineState::kDraining || status.state == EngineState::kFailed;
  if (unhealthy)
    return error_response(503, not_ready_reason(status));
  return json_response(Json().add("status", "ok").add("state", to_string(status.state)));
}

HttpResponse health_ready(const EngineStatus& status) {
  const std::string reason = not_ready_reason(status);
  Json body;
  body.add("ready", reason.empty());
  body.add("state", to_string(status.state));
  body.add("reason", reason);
  HttpResponse response = json_response(body, reason.empty() ? 200 : 503);
  if (!reason.empty())
    response.headers.emplace_back("Retry-After", "1");
  return response;
}

namespace {

Json describe(const EngineStatus& status, std::int64_t created_unix_seconds) {
  Json model;
  model.add("id", status.served_model_name);
  model.add("object", "model");
  model.add("created", created_unix_seconds);
  model.add("owned_by", "dormouse");
  model.add("root", status.served_model_name);
  model.add("parent", nullptr);
  model.add("max_model_len", status.max_model_len);
  return model;
}

}  // namespace

HttpResponse models(const EngineStatus& status, std::int64_t created_unix_seconds) {
  Json body;
  body.add("object", "list");
  body.add("data", Json().push(describe(status, created_unix_seconds)));
  return json_response(body);
}

HttpResponse model(const EngineStatus& status, std::int64_t created_unix_seconds,
                   std::string_view escaped_name) {
  const auto name = percent_decode(escaped_name);
  if (name && *name == status.served_model_name)
    return json_response(describe(status, created_unix_seconds));
  return error_response(404, fmt::format("The model `{}` does not exist.", escaped_name), "model");
}

}  // namespace dormouse::server

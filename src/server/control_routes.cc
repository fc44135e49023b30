#include "server/control_routes.h"

#include <fmt/core.h>

#include <limits>

#include "base/check.h"
#include "server/control_params.h"
#include "server/engine_json.h"
#include "server/replies.h"

namespace dormouse::server {
namespace {

constexpr std::int64_t kMaxTimeoutMs = std::numeric_limits<std::int32_t>::max();

// What a finished control call answers: the keys vLLM has first, then our report.
Json finished(Engine& engine, Json reply, const TransitionReport& report) {
  add_report(reply, report, engine.status().memory);
  return reply;
}

HttpResponse answer(Engine& engine, const Result<Json>& result) {
  return result ? json_response(*result) : control_error(engine, result.error());
}

Result<PauseMode> pause_mode(const ControlParams& params, PauseMode otherwise) {
  std::optional<std::string> name;
  DM_TRY_ASSIGN(name, params.string("mode"));
  if (!name)
    return otherwise;
  auto mode = parse_pause_mode(*name);
  if (!mode)
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("mode must be one of abort, wait, keep; got \"{}\"", name->substr(0, 64)),
        "mode");
  return mode;
}

Result<Json> do_sleep(Engine& engine, const ControlParams& params) {
  if (params.has("tags"))
    return fail(ErrorCode::kInvalidArgument,
                "sleep takes no tags: level 1 and 2 put everything to sleep. To drop the KV cache "
                "alone, POST /release_kv_cache_memory",
                "tags");
  SleepOptions options;
  std::optional<std::int64_t> level;
  DM_TRY_ASSIGN(level, params.integer("level", 0, 2));
  options.level = static_cast<int>(level.value_or(1));
  DM_TRY_ASSIGN(options.mode, pause_mode(params, PauseMode::kAbort));
  std::optional<std::int64_t> timeout_ms;
  DM_TRY_ASSIGN(timeout_ms, params.integer("timeout_ms", 0, kMaxTimeoutMs));
  if (timeout_ms)
    options.deadline = std::chrono::milliseconds(*timeout_ms);
  std::optional<bool> force;
  DM_TRY_ASSIGN(force, params.boolean("force"));
  options.force = force.value_or(false);
  TransitionReport report;
  DM_TRY_ASSIGN(report, engine.sleep(options));
  return finished(engine, Json().add("status", "sleeping").add("level", options.level), report);
}

Result<Json> do_wake_up(Engine& engine, const ControlParams& params) {
  std::optional<std::vector<std::string>> tags;
  DM_TRY_ASSIGN(tags, params.strings("tags"));
  const MemoryUsage known = engine.status().memory;
  for (const std::string& tag : tags.value_or(std::vector<std::string>())) {
    if (tag != kWeightsTag.name() && tag != kKvCacheTag.name() && tag != "scheduling" &&
        !known.contains(tag))
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("tags: \"{}\" is unknown; there are weights, kv_cache, scheduling",
                              tag.substr(0, 64)),
                  "tags");
  }
  TransitionReport report;
  DM_TRY_ASSIGN(report, engine.wake_up(tags));
  Json reply;
  reply.add("status", report.state == EngineState::kRunning ? "awake" : "sleeping");
  reply.add("tags_woken", tags ? Json(Json::Array(tags->begin(), tags->end())) : Json());
  return finished(engine, std::move(reply), report);
}

Result<Json> do_pause(Engine& engine, const ControlParams& params) {
  std::optional<bool> wait;
  DM_TRY_ASSIGN(wait, params.boolean("wait_for_inflight_requests"));
  PauseMode mode = PauseMode::kAbort;
  DM_TRY_ASSIGN(mode, pause_mode(params, wait.value_or(false) ? PauseMode::kWait : mode));
  std::optional<bool> clear_cache;
  DM_TRY_ASSIGN(clear_cache, params.boolean("clear_cache"));
  TransitionReport report;
  DM_TRY_ASSIGN(report, engine.pause(mode, clear_cache.value_or(true)));
  return finished(engine, Json().add("status", "paused"), report);
}

Result<Json> do_resume(Engine& engine, const ControlParams&) {
  TransitionReport report;
  DM_TRY_ASSIGN(report, engine.resume());
  return finished(engine, Json().add("status", "resumed"), report);
}

Result<Json> do_release_kv_cache(Engine& engine, const ControlParams&) {
  TransitionReport report;
  DM_TRY_ASSIGN(report, engine.release_kv_cache_memory());
  return finished(engine, Json().add("status", "kv_cache_released"), report);
}

Result<Json> do_reload_weights(Engine& engine, const ControlParams&) {
  TransitionReport report;
  DM_TRY_ASSIGN(report, engine.reload_weights());
  return finished(engine, Json().add("status", "weights_reloaded"), report);
}

Result<Json> do_reset_prefix_cache(Engine& engine, const ControlParams& params) {
  std::optional<bool> running;
  DM_TRY_ASSIGN(running, params.boolean("reset_running_requests"));
  std::optional<bool> external;
  DM_TRY_ASSIGN(external, params.boolean("reset_external"));
  bool done = false;
  DM_TRY_ASSIGN(done, engine.reset_prefix_cache(running.value_or(false), external.value_or(false)));
  return Json().add("success", done).add("state", to_string(engine.status().state));
}

Result<Json> do_collective_rpc(Engine& engine, const ControlParams& params) {
  std::optional<std::string> method;
  DM_TRY_ASSIGN(method, params.string("method"));
  if (!method)
    return fail(ErrorCode::kInvalidArgument, "Missing 'method' in request body", "method");
  const Json* kwargs = params.body().find("kwargs");
  Json options = kwargs == nullptr ? Json() : *kwargs;
  if (!options.is_null() && options.object() == nullptr)
    return fail(ErrorCode::kInvalidArgument, "kwargs must be an object", "kwargs");
  if (const Json* args = params.body().find("args"); args != nullptr && !args->is_null()) {
    const auto* list = args->array();
    const std::string_view first = *method == "sleep" ? "level" : "tags";
    if (list == nullptr || list->size() > 1)
      return fail(ErrorCode::kInvalidArgument, "args must be a list of at most one value", "args");
    const Json* named = options.find(first);
    if (!list->empty() && named != nullptr)
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{} is given in args and in kwargs; give it once", first), "args");
    if (!list->empty())
      options.add(std::string(first), list->front());
  }
  const ControlParams call(std::move(options));
  Result<Json> reply = Json();
  if (*method == "sleep")
    reply = do_sleep(engine, call);
  else if (*method == "wake_up")
    reply = do_wake_up(engine, call);
  else if (*method == "reload_weights")
    reply = do_reload_weights(engine, call);
  else
    return fail(ErrorCode::kNotFound,
                fmt::format("there is no method \"{}\"; there are sleep, wake_up, reload_weights",
                            method->substr(0, 64)),
                "method");
  DM_TRY(reply);
  return Json().add("results", Json().push(std::move(*reply)));
}

using Operation = Result<Json> (*)(Engine&, const ControlParams&);

HttpResponse run(Operation operation, Engine& engine, const HttpRequest& request) {
  const auto params = ControlParams::from(request);
  if (!params)
    return answer(engine, tl::unexpected(params.error()));
  return answer(engine, operation(engine, *params));
}

}  // namespace

HttpResponse control_error(const Engine& engine, const Error& error) {
  const int status = http_status(error.code, Audience::kOperator);
  Json body = error_body(status, error.message, error.param);
  body.add("state", to_string(engine.status().state));
  HttpResponse response = json_response(body, status);
  if (status == 503)
    response.headers.emplace_back("Retry-After", "1");
  return response;
}

HttpResponse sleep(Engine& engine, const HttpRequest& request) {
  return run(do_sleep, engine, request);
}

HttpResponse wake_up(Engine& engine, const HttpRequest& request) {
  return run(do_wake_up, engine, request);
}

HttpResponse pause(Engine& engine, const HttpRequest& request) {
  return run(do_pause, engine, request);
}

HttpResponse resume(Engine& engine, const HttpRequest& request) {
  return run(do_resume, engine, request);
}

HttpResponse release_kv_cache_memory(Engine& engine, const HttpRequest& request) {
  return run(do_release_kv_cache, engine, request);
}

HttpResponse reset_prefix_cache(Engine& engine, const HttpRequest& request) {
  return run(do_reset_prefix_cache, engine, request);
}

HttpResponse reload_weights(Engine& engine, const HttpRequest& request) {
  return run(do_reload_weights, engine, request);
}

HttpResponse collective_rpc(Engine& engine, const HttpRequest& request) {
  return run(do_collective_rpc, engine, request);
}

HttpResponse is_sleeping(Engine& engine) {
  return json_response(Json().add("is_sleeping", engine.status().is_sleeping));
}

HttpResponse is_paused(Engine& engine) {
  return json_response(Json().add("is_paused", engine.status().is_paused));
}

}  // namespace dormouse::server

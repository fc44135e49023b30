#include "server/control_routes.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "server/engine_json.h"
#include "server/replies.h"
#include "server/status_routes.h"

namespace dormouse::server {
namespace {

constexpr std::int64_t kMaxTimeoutMs = std::numeric_limits<std::int32_t>::max();

// What a finished control call answers: the keys vLLM has first, then our report.
Json finished(Engine& engine, Json reply, const TransitionReport& report) {
  const EngineStatus status = engine.status();
  add_report(reply, report, status.memory);
  reply.add("cause", status.cause);
  reply.add("next", next_call(status));
  return reply;
}

HttpResponse refused(const Engine& engine, const Error& error) {
  const int status = http_status(error.code, Audience::kOperator);
  Json body = error_body(status, error.message, error.param);
  body.add("state", to_string(engine.status().state));
  HttpResponse response = json_response(body, status);
  if (status == 503)
    response.headers.emplace_back("Retry-After", "1");
  return response;
}

Result<PauseMode> pause_mode(ControlParams& params, PauseMode otherwise) {
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

// vLLM has two words. Memory that is all there does not make an engine awake.
std::string_view word_of(EngineState state) {
  return state == EngineState::kRunning  ? "awake"
         : state == EngineState::kAsleep ? "sleeping"
                                         : to_string(state);
}

// The arguments of a call within collective_rpc: kwargs, and the one of `args` by its name.
Result<Json> rpc_options(ControlParams& params, std::string_view first) {
  const Json* kwargs = params.find("kwargs");
  Json options = kwargs == nullptr ? Json() : *kwargs;
  if (!options.is_null() && options.object() == nullptr)
    return fail(ErrorCode::kInvalidArgument, "kwargs must be an object", "kwargs");
  const Json* args = params.find("args");
  if (args == nullptr)
    return options;
  const auto* list = args->array();
  if (list == nullptr || list->size() > 1)
    return fail(ErrorCode::kInvalidArgument, "args must be a list of at most one value", "args");
  if (!list->empty() && options.find(first) != nullptr)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is given in args and in kwargs; give it once", first), "args");
  if (!list->empty())
    options.add(std::string(first), list->front());
  return options;
}

}  // namespace

HttpResponse run_control(ControlCall call, Engine& engine, const HttpRequest& request) {
  auto params = ControlParams::from(request);
  const Result<Json> reply =
      params ? call(engine, *params) : Result<Json>(tl::unexpected(params.error()));
  return reply ? json_response(*reply) : refused(engine, reply.error());
}

Result<Json> sleep(Engine& engine, ControlParams& params) {
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
  DM_TRY(params.refuse_slips());
  TransitionReport report;
  DM_TRY_ASSIGN(report, engine.sleep(options));
  return finished(engine, Json().add("status", "sleeping").add("level", options.level), report);
}

Result<Json> wake_up(Engine& engine, ControlParams& params) {
  std::optional<std::vector<std::string>> tags;
  DM_TRY_ASSIGN(tags, params.strings("tags"));
  DM_TRY(params.refuse_slips());
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
  reply.add("status", word_of(report.state));
  reply.add("tags_woken", tags ? Json(Json::Array(tags->begin(), tags->end())) : Json());
  return finished(engine, std::move(reply), report);
}

Result<Json> pause(Engine& engine, ControlParams& params) {
  std::optional<bool> wait;
  DM_TRY_ASSIGN(wait, params.boolean("wait_for_inflight_requests"));
  PauseMode mode = PauseMode::kAbort;
  DM_TRY_ASSIGN(mode, pause_mode(params, wait.value_or(false) ? PauseMode::kWait : mode));
  std::optional<bool> clear_cache;
  DM_TRY_ASSIGN(clear_cache, params.boolean("clear_cache"));
  DM_TRY(params.refuse_slips());
  TransitionReport report;
  DM_TRY_ASSIGN(report, engine.pause(mode, clear_cache.value_or(true)));
  return finished(engine, Json().add("status", "paused"), report);
}

Result<Json> resume(Engine& engine, ControlParams& params) {
  DM_TRY(params.refuse_slips());
  TransitionReport report;
  DM_TRY_ASSIGN(report, engine.resume());
  return finished(engine, Json().add("status", "resumed"), report);
}

Result<Json> release_kv_cache_memory(Engine& engine, ControlParams& params) {
  DM_TRY(params.refuse_slips());
  TransitionReport report;
  DM_TRY_ASSIGN(report, engine.release_kv_cache_memory());
  return finished(engine, Json().add("status", "kv_cache_released"), report);
}

Result<Json> reload_weights(Engine& engine, ControlParams& params) {
  DM_TRY(params.refuse_slips());
  TransitionReport report;
  DM_TRY_ASSIGN(report, engine.reload_weights());
  return finished(engine, Json().add("status", "weights_reloaded"), report);
}

Result<Json> reset_prefix_cache(Engine& engine, ControlParams& params) {
  std::optional<bool> running;
  DM_TRY_ASSIGN(running, params.boolean("reset_running_requests"));
  std::optional<bool> external;
  DM_TRY_ASSIGN(external, params.boolean("reset_external"));
  DM_TRY(params.refuse_slips());
  bool done = false;
  DM_TRY_ASSIGN(done, engine.reset_prefix_cache(running.value_or(false), external.value_or(false)));
  return Json().add("success", done).add("state", to_string(engine.status().state));
}

Result<Json> collective_rpc(Engine& engine, ControlParams& params) {
  constexpr std::pair<std::string_view, ControlCall> kMethods[] = {
      {"sleep", server::sleep}, {"wake_up", wake_up}, {"reload_weights", reload_weights}};
  std::optional<std::string> method;
  DM_TRY_ASSIGN(method, params.string("method"));
  if (!method)
    return fail(ErrorCode::kInvalidArgument, "Missing 'method' in request body", "method");
  Json options;
  DM_TRY_ASSIGN(options, rpc_options(params, *method == "sleep" ? "level" : "tags"));
  (void)params.find("timeout");  // clients send it; each of these calls has a bound of its own
  DM_TRY(params.refuse_slips());
  const auto* const found =
      std::ranges::find(kMethods, *method, [](const auto& known) { return known.first; });
  if (found == std::end(kMethods))
    return fail(ErrorCode::kNotFound,
                fmt::format("there is no method \"{}\"; there are sleep, wake_up, reload_weights",
                            method->substr(0, 64)),
                "method");
  ControlParams call(std::move(options));
  Json reply;
  DM_TRY_ASSIGN(reply, found->second(engine, call));
  return Json().add("results", Json().push(std::move(reply)));
}

HttpResponse is_sleeping(Engine& engine) {
  return json_response(Json().add("is_sleeping", engine.status().is_sleeping));
}

HttpResponse is_paused(Engine& engine) {
  return json_response(Json().add("is_paused", engine.status().is_paused));
}

}  // namespace dormouse::server

#include "server/alias_routes.h"

#include <algorithm>

#include "base/check.h"
#include "server/control_params.h"
#include "server/control_routes.h"
#include "server/engine_json.h"
#include "server/replies.h"

namespace dormouse::server {
namespace {

using Tags = std::vector<std::string>;

bool has(const Tags& tags, const MemoryTag& tag) {
  return std::find(tags.begin(), tags.end(), tag.name()) != tags.end();
}

// The tags asked for that stand for memory here; none: all were meant.
Result<std::optional<Tags>> asked_tags(const HttpRequest& request) {
  DM_TRY_ASSIGN(const ControlParams params, ControlParams::from(request));
  std::optional<Tags> tags;
  DM_TRY_ASSIGN(tags, params.strings("tags"));
  if (tags && !tags->empty()) {
    std::erase(*tags, "cuda_graph");
    return tags;
  }
  return std::optional<Tags>();
}

HttpRequest with_body(const Json& body) {
  return {.method = "POST", .body = body.dump()};
}

HttpResponse unchanged(const Engine& engine) {
  return json_response(to_json(engine.status()));
}

}  // namespace

HttpResponse release_memory_occupation(Engine& engine, const HttpRequest& request) {
  const auto asked = asked_tags(request);
  if (!asked)
    return control_error(engine, asked.error());
  const Tags tags = asked->value_or(Tags{kWeightsTag.name(), kKvCacheTag.name()});
  for (const std::string& tag : tags) {
    if (tag != kWeightsTag.name() && tag != kKvCacheTag.name())
      return control_error(
          engine,
          {ErrorCode::kInvalidArgument,
           "tags: \"" + tag.substr(0, 64) + "\" is unknown; there are weights, kv_cache", "tags"});
  }
  const Tags asleep = engine.status().tags_asleep;
  const auto is_done = [&](const std::string& tag) { return has(asleep, MemoryTag(tag)); };
  if (std::all_of(tags.begin(), tags.end(), is_done))
    return unchanged(engine);
  if (!has(tags, kWeightsTag))
    return release_kv_cache_memory(engine, {});
  if (!has(tags, kKvCacheTag) && !has(asleep, kKvCacheTag))
    return control_error(
        engine, {ErrorCode::kFailedPrecondition,
                 "weights do not sleep while the KV cache stays; release kv_cache too", "tags"});
  return server::sleep(engine, {});
}

HttpResponse resume_memory_occupation(Engine& engine, const HttpRequest& request) {
  const auto tags = asked_tags(request);
  if (!tags)
    return control_error(engine, tags.error());
  if (!*tags)
    return wake_up(engine, {});
  if ((*tags)->empty())
    return unchanged(engine);
  return wake_up(
      engine, with_body(Json().add("tags", Json(Json::Array((*tags)->begin(), (*tags)->end())))));
}

HttpResponse pause_generation(Engine& engine, const HttpRequest& request) {
  const auto params = ControlParams::from(request);
  const auto mode = params ? params->string("mode") : tl::unexpected(params.error());
  if (!mode)
    return control_error(engine, mode.error());
  if (*mode != "in_place" && *mode != "retract")
    return server::pause(engine, request);
  return server::pause(
      engine, with_body(Json().add("mode", "keep").add("clear_cache", *mode == "retract")));
}

HttpResponse flush_cache(Engine& engine, const HttpRequest&) {
  const auto done = engine.reset_prefix_cache(false);
  if (!done)
    return control_error(engine, done.error());
  if (!*done)
    return error_response(400, "the cache is in use; try again when no request is under way");
  return json_response(Json().add("success", true).add("state", to_string(engine.status().state)));
}

}  // namespace dormouse::server

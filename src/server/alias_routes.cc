#include "server/alias_routes.h"

#include <algorithm>

#include "base/check.h"
#include "server/control_routes.h"

namespace dormouse::server {
namespace {

using Tags = std::vector<std::string>;

bool has(const Tags& tags, const MemoryTag& tag) {
  return std::find(tags.begin(), tags.end(), tag.name()) != tags.end();
}

// The tags asked for that stand for memory here; none: all were meant.
Result<std::optional<Tags>> asked_tags(ControlParams& params) {
  std::optional<Tags> tags;
  DM_TRY_ASSIGN(tags, params.strings("tags"));
  if (tags && !tags->empty()) {
    std::erase(*tags, "cuda_graph");
    return tags;
  }
  return std::optional<Tags>();
}

Json unchanged(const Engine& engine) {
  return Json().add("state", to_string(engine.status().state)).add("changed", false);
}

Result<Json> call_with(ControlCall call, Engine& engine, Json options = {}) {
  ControlParams params(std::move(options));
  return call(engine, params);
}

}  // namespace

Result<Json> release_memory_occupation(Engine& engine, ControlParams& params) {
  std::optional<Tags> asked;
  DM_TRY_ASSIGN(asked, asked_tags(params));
  const Tags tags = asked.value_or(Tags{kWeightsTag.name(), kKvCacheTag.name()});
  for (const std::string& tag : tags) {
    if (tag != kWeightsTag.name() && tag != kKvCacheTag.name())
      return fail(ErrorCode::kInvalidArgument,
                  "tags: \"" + tag.substr(0, 64) + "\" is unknown; there are weights, kv_cache",
                  "tags");
  }
  const Tags asleep = engine.status().tags_asleep;
  const auto is_done = [&](const std::string& tag) { return has(asleep, MemoryTag(tag)); };
  if (std::all_of(tags.begin(), tags.end(), is_done))
    return unchanged(engine);
  if (!has(tags, kWeightsTag))
    return call_with(release_kv_cache_memory, engine);
  if (!has(tags, kKvCacheTag) && !has(asleep, kKvCacheTag))
    return fail(ErrorCode::kFailedPrecondition,
                "weights do not sleep while the KV cache stays; release kv_cache too", "tags");
  return call_with(server::sleep, engine);
}

Result<Json> resume_memory_occupation(Engine& engine, ControlParams& params) {
  std::optional<Tags> tags;
  DM_TRY_ASSIGN(tags, asked_tags(params));
  if (!tags)
    return call_with(wake_up, engine);
  if (tags->empty())
    return unchanged(engine);
  return call_with(wake_up, engine,
                   Json().add("tags", Json(Json::Array(tags->begin(), tags->end()))));
}

Result<Json> pause_generation(Engine& engine, ControlParams& params) {
  std::optional<std::string> mode;
  DM_TRY_ASSIGN(mode, params.string("mode"));
  Json options;
  if (mode == "in_place" || mode == "retract")
    options.add("mode", "keep").add("clear_cache", mode == "retract");
  else if (mode)
    options.add("mode", *mode);
  return call_with(server::pause, engine, std::move(options));
}

Result<Json> continue_generation(Engine& engine, ControlParams&) {
  return call_with(resume, engine);
}

Result<Json> flush_cache(Engine& engine, ControlParams&) {
  bool done = false;
  DM_TRY_ASSIGN(done, engine.reset_prefix_cache(false));
  if (!done)
    return fail(ErrorCode::kInvalidArgument,
                "the cache is in use; try again when no request is under way");
  return Json().add("success", true).add("state", to_string(engine.status().state));
}

}  // namespace dormouse::server

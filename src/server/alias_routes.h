// Control calls under the names that SGLang and LMDeploy have for them, for programs written for
// those engines. Each is one of the calls in control_routes.h with its options renamed; so are its
// reply and its errors. Options that only those engines have are ignored.
//
// Threads: any; each call blocks until the engine has finished it.
#pragma once

#include "dormouse/engine.h"
#include "server/control_params.h"

namespace dormouse::server {

// JSON tags. None, or weights and kv_cache: sleep at level 1. kv_cache: the cache alone. weights:
// only after the cache, since none sleep while the cache stays. cuda_graph is known, and nothing.
Result<Json> release_memory_occupation(Engine& engine, ControlParams& params);
// JSON tags: wake_up of these, or of everything.
Result<Json> resume_memory_occupation(Engine& engine, ControlParams& params);
// JSON mode: abort, or SGLang's in_place and retract, which keep requests with and without their
// blocks; or a mode of pause.
Result<Json> pause_generation(Engine& engine, ControlParams& params);
Result<Json> continue_generation(Engine& engine, ControlParams& params);
// kInvalidArgument while requests hold blocks: the caller tries again.
Result<Json> flush_cache(Engine& engine, ControlParams& params);

}  // namespace dormouse::server

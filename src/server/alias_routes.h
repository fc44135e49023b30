// Control calls under the names that SGLang and LMDeploy have for them, for programs written for
// those engines. Each is one of the calls in control_routes.h with its options renamed; so are its
// reply and its errors.
//
// Threads: any; each call blocks until the engine has finished it.
#pragma once

#include "dormouse/engine.h"
#include "server/http.h"

namespace dormouse::server {

// JSON tags. None, or weights and kv_cache: sleep at level 1. kv_cache: the cache alone. weights:
// only after the cache, since none sleep while the cache stays. cuda_graph is known, and nothing.
HttpResponse release_memory_occupation(Engine& engine, const HttpRequest& request);
// JSON tags: wake_up of these, or of everything.
HttpResponse resume_memory_occupation(Engine& engine, const HttpRequest& request);
// JSON mode: abort, or SGLang's in_place and retract, which keep requests with and without their
// blocks; or a mode of pause.
HttpResponse pause_generation(Engine& engine, const HttpRequest& request);
// 400 while requests hold blocks: the caller tries again.
HttpResponse flush_cache(Engine& engine, const HttpRequest& request);

}  // namespace dormouse::server

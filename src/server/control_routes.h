// The routes that change the engine: sleep, wake-up, pause, weights, caches. Names, options and
// replies are vLLM's; each reply also says what state the engine is in and what the transition did.
//
// Threads: any; each call blocks until the engine has finished it.
// Errors:  replies: 400 for options (nothing has changed), otherwise by the engine's error code.
#pragma once

#include "dormouse/engine.h"
#include "server/http.h"

namespace dormouse::server {

HttpResponse sleep(Engine& engine, const HttpRequest& request);
HttpResponse wake_up(Engine& engine, const HttpRequest& request);
HttpResponse pause(Engine& engine, const HttpRequest& request);
HttpResponse resume(Engine& engine, const HttpRequest& request);
HttpResponse release_kv_cache_memory(Engine& engine, const HttpRequest& request);
HttpResponse reset_prefix_cache(Engine& engine, const HttpRequest& request);
HttpResponse reload_weights(Engine& engine, const HttpRequest& request);
// Runs one of sleep, wake_up, reload_weights; every other method is 404.
HttpResponse collective_rpc(Engine& engine, const HttpRequest& request);

// What a control call that failed answers; it tells the state too.
HttpResponse control_error(const Engine& engine, const Error& error);

HttpResponse is_sleeping(Engine& engine);
HttpResponse is_paused(Engine& engine);

}  // namespace dormouse::server

// The calls that change the engine: sleep, wake-up, pause, weights, caches. Names, options and
// replies are vLLM's; each reply also says what state the engine is in, what the transition did,
// and in `next` what is to be called before requests are served, if anything is.
//
// Threads: any; each call blocks until the engine has finished it.
// Errors:  kInvalidArgument for options, unknown ones too (nothing has changed), otherwise the
//          engine's. The answer's status goes by the code.
#pragma once

#include "dormouse/engine.h"
#include "server/control_params.h"
#include "server/http.h"

namespace dormouse::server {

using ControlCall = Result<Json> (*)(Engine& engine, ControlParams& params);

// Reads the options, makes the call, and answers with its reply or with its error and the state.
HttpResponse run_control(ControlCall call, Engine& engine, const HttpRequest& request);

Result<Json> sleep(Engine& engine, ControlParams& params);
Result<Json> wake_up(Engine& engine, ControlParams& params);
Result<Json> pause(Engine& engine, ControlParams& params);
Result<Json> resume(Engine& engine, ControlParams& params);
Result<Json> release_kv_cache_memory(Engine& engine, ControlParams& params);
Result<Json> reset_prefix_cache(Engine& engine, ControlParams& params);
Result<Json> reload_weights(Engine& engine, ControlParams& params);
// Makes one of the calls sleep, wake_up, reload_weights; every other method is kNotFound.
Result<Json> collective_rpc(Engine& engine, ControlParams& params);

HttpResponse is_sleeping(Engine& engine);
HttpResponse is_paused(Engine& engine);

}  // namespace dormouse::server

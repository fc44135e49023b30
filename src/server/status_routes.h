// Read-only routes. They answer in every state, also while a transition is under way, and wake
// nothing.
//
// Threads: any; none blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "dormouse/engine.h"
#include "server/http.h"

namespace dormouse::server {

HttpResponse health(const EngineStatus& status);        // can this process live on?
HttpResponse health_ready(const EngineStatus& status);  // can it serve a request now?
HttpResponse models(const EngineStatus& status, std::int64_t created_unix_seconds);
// The one of this name, escapes included; 404 for another.
HttpResponse model(const EngineStatus& status, std::int64_t created_unix_seconds,
                   std::string_view escaped_name);

// Why no request is served now, and what to do; empty if requests are served.
std::string not_ready_reason(const EngineStatus& status);
// The call that leads on from here to serving, "POST /wake_up"; empty if none does or is needed.
std::string_view next_call(const EngineStatus& status);

}  // namespace dormouse::server

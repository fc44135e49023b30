// GET /metrics: the engine's state and counters, and what the server measured, under vLLM's names.
#pragma once

#include "dormouse/engine.h"
#include "server/http.h"
#include "server/metrics.h"

namespace dormouse::server {

HttpResponse metrics_response(const Engine& engine, const RequestMetrics& requests);

}  // namespace dormouse::server

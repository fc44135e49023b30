// The engine's values as JSON.
#pragma once

#include "base/json.h"
#include "dormouse/engine.h"

namespace dormouse::server {

Json to_json(const EngineStatus& status);
Json to_json(const MemoryReceipt& receipt);

// Adds what every control reply carries: state, level, changed, tags (each "asleep" or "resident"),
// freed_bytes as measured, seconds, receipt.
void add_report(Json& reply, const TransitionReport& report, const MemoryUsage& usage);

}  // namespace dormouse::server

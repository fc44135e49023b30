// The engine's values as JSON.
#pragma once

#include "base/json.h"
#include "dormouse/config.h"
#include "dormouse/engine.h"

namespace dormouse::server {

// `kv_transfer`: what the engine was started with.
Json to_json(const EngineStatus& status, const KvTransferConfig& kv_transfer);
// Connector, role, the address for peers and the peers that it may call; null without a connector.
Json kv_transfer_json(const EngineStatus& status, const KvTransferConfig& config);
Json to_json(const MemoryReceipt& receipt);

// Adds what every control reply carries: state, level, changed, tags (each "asleep" or "resident"),
// freed_bytes as measured, seconds, receipt.
void add_report(Json& reply, const TransitionReport& report, const MemoryUsage& usage);

}  // namespace dormouse::server

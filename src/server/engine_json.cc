#include "server/engine_json.h"

#include <fmt/core.h>

#include <algorithm>

#include "server/status_routes.h"

namespace dormouse::server {
namespace {

Json to_json(const std::vector<std::string>& names) {
  return Json(Json::Array(names.begin(), names.end()));
}

Json tag_states(const TransitionReport& report, const MemoryUsage& usage) {
  Json tags{Json::Object()};
  const auto& asleep = report.tags_asleep;
  for (const auto& [tag, bytes] : usage) {
    const bool sleeps = std::find(asleep.begin(), asleep.end(), tag) != asleep.end();
    tags.add(tag, sleeps ? "asleep" : "resident");
  }
  return tags;
}

Json to_json(const TagUsage& usage) {
  Json tag;
  tag.add("mapped", usage.mapped);
  tag.add("asleep", usage.asleep);
  tag.add("backed_up", usage.backed_up);
  tag.add("leaked", usage.leaked);
  tag.add("generation", usage.generation);
  tag.add("read_only", usage.read_only);
  return tag;
}

std::string_view name_of(KvRole role) {
  return role == KvRole::kProducer   ? "kv_producer"
         : role == KvRole::kConsumer ? "kv_consumer"
                                     : "kv_both";
}

// Wherever the connector, or one of those within it, has them.
void collect_peers(const Json& config, Json& peers) {
  if (const auto* items = config.array()) {
    for (const Json& item : *items)
      collect_peers(item, peers);
  }
  if (config.object() == nullptr)
    return;
  for (const auto& [name, value] : *config.object()) {
    if (name != "peers" || value.array() == nullptr) {
      collect_peers(value, peers);
      continue;
    }
    for (const Json& peer : *value.array())
      peers.push(peer);
  }
}

}  // namespace

Json to_json(const MemoryReceipt& receipt) {
  Json tags{Json::Object()};
  for (const auto& [name, bytes] : receipt.tags) {
    Json tag;
    tag.add("unmapped", bytes.unmapped);
    tag.add("mapped", bytes.mapped);
    tag.add("copied_out", bytes.copied_out);
    tag.add("copied_in", bytes.copied_in);
    tag.add("backup_kept", bytes.backup_kept);
    tags.add(name, std::move(tag));
  }
  Json phases{Json::Object()};
  for (const auto& [phase, milliseconds] : receipt.phases_ms)
    phases.add(phase, milliseconds);
  Json kept{Json::Array()};
  for (const auto& item : receipt.kept)
    kept.push(Json().add("what", item.what).add("bytes", item.bytes).add("why", item.why));

  Json out;
  out.add("tags", std::move(tags));
  out.add("expected_freed", receipt.expected_freed);
  out.add("measured_freed", receipt.measured_freed);
  out.add("phases_ms", std::move(phases));
  out.add("kept", std::move(kept));
  return out;
}

void add_report(Json& reply, const TransitionReport& report, const MemoryUsage& usage) {
  reply.add("state", to_string(report.state));
  reply.add("sleep_level", report.level);
  reply.add("changed", report.changed);
  reply.add("tags", tag_states(report, usage));
  reply.add("freed_bytes", report.memory.measured_freed);
  reply.add("seconds", report.total_ms / 1e3);
  reply.add("receipt", to_json(report.memory));
}

Json kv_transfer_json(const EngineStatus& status, const KvTransferConfig& config) {
  if (status.kv_connector.empty())
    return {};
  Json peers = Json::Array();
  if (const auto extra = parse_json(config.kv_connector_extra_config))
    collect_peers(*extra, peers);
  Json out;
  out.add("connector", status.kv_connector);
  out.add("role", name_of(config.kv_role));
  out.add("engine_id", status.engine_id);
  out.add("address", fmt::format("{}:{}", config.kv_ip, config.kv_port));
  out.add("peers", std::move(peers));
  out.add("loads", status.kv_loads);
  out.add("sends", status.kv_sends);
  return out;
}

Json to_json(const EngineStatus& status, const KvTransferConfig& kv_transfer) {
  Json memory{Json::Object()};
  for (const auto& [tag, usage] : status.memory)
    memory.add(tag, to_json(usage));
  Json last;
  add_report(last, status.last_transition, status.memory);

  Json out;
  out.add("state", to_string(status.state));
  out.add("cause", status.cause);
  out.add("next", next_call(status));
  out.add("model", status.served_model_name);
  out.add("model_path", status.model_path);
  out.add("kernel", status.kernel);
  out.add("sleep_level", status.sleep_level);
  out.add("tags_asleep", to_json(status.tags_asleep));
  out.add("weights_valid", status.weights_valid);
  out.add("is_sleeping", status.is_sleeping);
  out.add("is_paused", status.is_paused);
  out.add("accepts_requests", status.accepts_requests);
  out.add("load_progress", status.load_progress);
  out.add("transition_phase", status.transition_phase);
  out.add("transition_progress", status.transition_progress);
  out.add("requests_running", status.requests_running);
  out.add("requests_waiting", status.requests_waiting);
  out.add("blocks_total", status.blocks_total);
  out.add("blocks_used", status.blocks_used);
  out.add("block_size", status.block_size);
  out.add("max_model_len", status.max_model_len);
  out.add("generation_weights", status.generation_weights);
  out.add("generation_kv_cache", status.generation_kv_cache);
  out.add("kv_transfer", kv_transfer_json(status, kv_transfer));
  out.add("memory", std::move(memory));
  out.add("last_transition", std::move(last));
  return out;
}

}  // namespace dormouse::server

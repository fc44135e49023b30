#include "kv_connector/multi/multi_config.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "kv_connector/extra_config.h"
#include "kv_connector/registry.h"

namespace dormouse {
namespace {

constexpr const char* kKey = "connectors";
constexpr const char* kPolicy = "kv_load_failure_policy";

void inherit(const Json& given, const KvTransferConfig& whole, KvTransferConfig& child) {
  const auto absent = [&given](const char* key) {
    const Json* value = given.find(key);
    return value == nullptr || value->is_null();
  };
  if (absent("engine_id"))
    child.engine_id = whole.engine_id;
  if (absent("kv_role"))
    child.kv_role = whole.kv_role;
  if (absent("kv_ip"))
    child.kv_ip = whole.kv_ip;
  if (absent("kv_port"))
    child.kv_port = whole.kv_port;
  if (absent("verify_kv"))
    child.verify_kv = whole.verify_kv;
}

Result<MultiChild> read_child(const Json& given, const KvTransferConfig& whole) {
  DM_TRY_ASSIGN(KvTransferConfig config, parse_kv_transfer_config(given.dump()));
  if (given.find(kPolicy) != nullptr)
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} is the engine's: state it beside kv_connector MultiConnector, not "
                            "for one of its connectors",
                            kPolicy),
                kPolicy);
  config.kv_load_failure_policy = whole.kv_load_failure_policy;
  if (config.kv_connector == kMultiConnector)
    return fail(ErrorCode::kInvalidArgument,
                "a MultiConnector cannot hold another one; name all connectors in one list", kKey);
  inherit(given, whole, config);
  DM_TRY_ASSIGN(KvConnectorClass connector, find_kv_connector(config));
  return MultiChild{std::move(config), std::move(connector)};
}

}  // namespace

Result<std::vector<MultiChild>> multi_children(const KvTransferConfig& config) {
  std::vector<MultiChild> children;
  DM_TRY(read_extra_config(config, [&](FieldReader& fields) {
    const Json* list = fields.find(kKey);
    if (list == nullptr || list->array() == nullptr || list->array()->empty())
      return fields.fail(kKey,
                         "connectors must be a list of at least one KV transfer configuration");
    for (const Json& each : *list->array()) {
      auto child = read_child(each, config);
      if (!child)
        return fields.fail(kKey, child.error().message, child.error().code);
      children.push_back(std::move(*child));
    }
  }));
  return children;
}

bool multi_follows_mapping(const KvTransferConfig& config) {
  const auto children = multi_children(config);
  return children && std::ranges::all_of(*children, [](const MultiChild& child) {
           return child.connector.follows_mapping(child.config);
         });
}

}  // namespace dormouse

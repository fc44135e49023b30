// The configuration of the MultiConnector: {"connectors": [{a KV transfer configuration}, ...]}.
// What a child's does not say is as in the whole.
//
// Errors: kInvalidArgument with `param`.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "dormouse/kv_connector.h"

namespace dormouse {

inline constexpr const char* kMultiConnector = "MultiConnector";

struct MultiChild {
  KvTransferConfig config;
  KvConnectorClass connector;
};

// In the order of the configuration; at least one. A MultiConnector cannot be a child.
Result<std::vector<MultiChild>> multi_children(const KvTransferConfig& config);

// One half of every child, by its class's factory.
template <class Half>
Result<std::vector<std::unique_ptr<Half>>> make_halves(
    const KvConnectorContext& context,
    Result<std::unique_ptr<Half>> (*KvConnectorClass::*factory)(const KvConnectorContext&)) {
  DM_TRY_ASSIGN(const auto children, multi_children(context.config));
  std::vector<std::unique_ptr<Half>> halves;
  for (const MultiChild& each : children) {
    KvConnectorContext own = context;
    own.config = each.config;
    DM_TRY_ASSIGN(auto half, (each.connector.*factory)(own));
    halves.push_back(std::move(half));
  }
  return halves;
}

// Exactly if every child does. False for a configuration that is wrong.
bool multi_follows_mapping(const KvTransferConfig& config);

}  // namespace dormouse

// The configuration of the MultiConnector: {"connectors": [{a KV transfer configuration}, ...]}.
// What a child's does not say is as in the whole.
//
// Errors: kInvalidArgument with `param`.
#pragma once

#include <vector>

#include "dormouse/kv_connector.h"

namespace dormouse {

inline constexpr const char* kMultiConnector = "MultiConnector";

struct MultiChild {
  KvTransferConfig config;
  KvConnectorClass connector;
};

// In the order of the configuration; at least one. A MultiConnector cannot be a child.
Result<std::vector<MultiChild>> multi_children(const KvTransferConfig& config);

// Exactly if every child does. False for a configuration that is wrong.
bool multi_follows_mapping(const KvTransferConfig& config);

}  // namespace dormouse

// Which connectors there are, and what they can do before one is built.
//
// Threads: any. Errors: kInvalidArgument (unknown name, unusable module), kUnsupported.
#pragma once

#include <string>
#include <vector>

#include "dormouse/kv_connector.h"

namespace dormouse {

// Reads --kv-transfer-config. kInvalidArgument names the key.
Result<KvTransferConfig> parse_kv_transfer_config(std::string_view json);

// The class that the configuration names: built in, or from its module, once the class has found
// nothing wrong with the configuration. A module stays loaded.
// "Unsupported connector type: <name>" and the names that exist.
Result<KvConnectorClass> find_kv_connector(const KvTransferConfig& config);

std::vector<std::string> built_in_kv_connectors();

// "<Connector> does not support sleep mode", kUnsupported. Nothing configured supports everything.
// A pure function of class and configuration.
Status check_sleep_supported(const KvTransferConfig& config);

}  // namespace dormouse

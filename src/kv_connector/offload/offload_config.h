// The configuration of the OffloadingConnector: kv_connector_extra_config.
//
// Errors: kInvalidArgument with `param`, the key.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "dormouse/kv_connector.h"

namespace dormouse {

struct OffloadConfig {
  std::uint64_t cpu_bytes_to_use = std::uint64_t{256} << 20;  // of all ranks together
  std::string disk_path;                                      // a folder; empty: no disk tier
  std::uint64_t disk_bytes = std::uint64_t{1} << 30;          // in the folder; 0: no own limit
  std::uint32_t num_threads = 1;                              // that copy, for each rank
  std::chrono::steady_clock::duration transfer_timeout = std::chrono::seconds(10);
  std::uint32_t num_slots = 0;  // blocks that the host tier has room for, the same on every rank
};

// All but num_slots, which depends on the model.
Result<OffloadConfig> parse_offload_config(const KvTransferConfig& config);
Result<OffloadConfig> parse_offload_config(const KvConnectorContext& context);

}  // namespace dormouse

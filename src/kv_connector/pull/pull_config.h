// What a pulling connector reads from kv_connector_extra_config.
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>

#include "dormouse/kv_connector.h"
#include "kv_connector/pull/lease_table.h"
#include "net/meeting_place.h"

namespace dormouse::pull {

struct PullConfig {
  Clock::duration lease_duration = std::chrono::seconds(30);  // kv_lease_duration
  Clock::duration pull_timeout = std::chrono::seconds(10);    // of one load, in all
  std::uint32_t num_threads = 2;                              // that load
  std::set<std::string> peers;                                // "host:port" that may be dialled
  std::string ipc_dir;                                        // empty: the user's meeting place
  std::string peer_token;                                     // empty: the meeting place's

  // As many as vLLM's NIXL connector has.
  Clock::duration heartbeat_interval() const { return lease_duration / 6; }
  LeaseTimes lease_times() const { return {lease_duration, lease_duration * 2 / 3}; }
};

// kInvalidArgument names the key, also one that is unknown.
Result<PullConfig> read_pull_config(const KvTransferConfig& config);

// Where engines on this host meet, by the configuration.
Result<net::MeetingPlace> meeting_place(const PullConfig& config);
std::string scheduler_socket(const std::string& directory, std::uint32_t port);
std::string rank_socket(const std::string& directory, std::uint32_t port, std::uint32_t rank);

}  // namespace dormouse::pull

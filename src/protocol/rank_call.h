// What the engine asks of every rank besides computing, and what a rank answers. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "dormouse/kv_connector.h"
#include "dormouse/memory.h"

namespace dormouse {

struct CheckSleepCall {  // would a sleep be refused? Changes nothing
  std::vector<MemoryTag> offload;
};
struct SleepCall {
  std::vector<MemoryTag> offload;
};
struct DiscardCall {
  std::vector<MemoryTag> tags;
};
struct WakeUpCall {
  std::optional<std::vector<MemoryTag>> tags;
};
struct CommitWakeUpCall {};  // every rank has woken: what was kept for going back may go
struct ReloadWeightsCall {};
struct ReportStateCall {};

using RankCall = std::variant<CheckSleepCall, SleepCall, DiscardCall, WakeUpCall, CommitWakeUpCall,
                              ReloadWeightsCall, ReportStateCall>;

// What is true on one rank now.
struct RankState {
  MemoryUsage memory;
  std::vector<std::string> tags_asleep;
  bool restored = true;        // no registration waits to be restored
  bool weights_valid = false;  // resident or not, a wake-up alone brings them back
  std::string handshake;       // of the KV connector; empty: none, or its memory is asleep
  std::string model_hash;      // of the weights and the configuration; empty without a connector
};

struct RankReply {
  MemoryReceipt receipt;  // of a transition
  RankState state;
};

}  // namespace dormouse

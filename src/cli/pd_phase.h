// One way to sleep among a prefill and a decode instance, carried out and checked from outside.
#pragma once

#include <string>
#include <vector>

#include "cli/demo_phase.h"
#include "cli/demo_report.h"
#include "cli/pd_cluster.h"

namespace dormouse::cli {

enum class PdSleepers { kPrefill, kDecode, kBoth, kLegs };

struct PdPhase {
  PdSleepers who = PdSleepers::kPrefill;
  int level = 1;  // 0: the KV cache alone
};

// "prefill", "decode", "both", and "legs": asleep between the two legs of a request.
std::string_view name_of(PdSleepers who);

// What a transfer of the prompts must bring: everything while the producer is awake.
inline constexpr double kLeastTransferred = 0.95;

// Sleeps, checks what the operating system says of every process, asks, wakes, asks again. A
// difference is a problem of the result; an error means that the cluster cannot go on.
Result<PhaseResult> run_pd_phase(PdCluster& cluster, const PdPhase& phase,
                                 const Questions& questions, const std::string& connector);

}  // namespace dormouse::cli

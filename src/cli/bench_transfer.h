// Pulling KV beside plain memcpy, releasing and restoring, and what a prefix on the tier saves.
#pragma once

#include "cli/bench_report.h"
#include "cli/options.h"

namespace dormouse::cli {

Result<BenchReport> bench_transfer(const BenchOptions& options);

}  // namespace dormouse::cli

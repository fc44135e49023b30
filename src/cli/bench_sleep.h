// Sleep with a retained backup and wake-up, beside a bare copy of as many bytes by as many threads.
#pragma once

#include "cli/bench_report.h"
#include "cli/options.h"
#include "dormouse/result.h"

namespace dormouse::cli {

Result<BenchReport> bench_sleep(const BenchOptions& options);

}  // namespace dormouse::cli

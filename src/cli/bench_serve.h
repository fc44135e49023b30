// Tokens per second of the engine, and of llama.cpp's server on the same file and threads.
#pragma once

#include "cli/bench_report.h"
#include "cli/options.h"
#include "dormouse/result.h"

namespace dormouse::cli {

Result<BenchReport> bench_serve(const BenchOptions& options);

}  // namespace dormouse::cli

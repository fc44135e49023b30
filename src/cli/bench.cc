#include "cli/bench.h"

#include <fmt/core.h>

#include "base/log.h"
#include "cli/bench_serve.h"
#include "cli/bench_sleep.h"
#include "cli/bench_transfer.h"

namespace dormouse::cli {

int run_bench(int argc, char** argv) {
  const auto parsed = parse_bench(argc, argv);
  if (const auto* code = std::get_if<ExitCode>(&parsed))
    return *code;
  const auto& options = std::get<BenchOptions>(parsed);
  set_log_level(LogLevel::kError);
  // Before the benchmark itself keeps the cores busy.
  Json machine = machine_json();
  auto report = options.kind == BenchKind::kSleep      ? bench_sleep(options)
                : options.kind == BenchKind::kTransfer ? bench_transfer(options)
                                                       : bench_serve(options);
  if (!report) {
    fmt::print(stderr, "dormouse bench: {}\n", report.error().message);
    return kExitFailed;
  }
  report->json.add("machine", std::move(machine));
  if (!options.json)
    fmt::print("{}\n", report->text);
  fmt::print("{}\n", report->json.dump());
  return kExitOk;
}

}  // namespace dormouse::cli

#include "cli/demo_report.h"

#include <fmt/core.h>

#include <cmath>

#include "base/json.h"

namespace dormouse::cli {
namespace {

double mebibytes(double bytes) {
  return bytes / (1 << 20);
}

Json to_json_value(const PhaseResult& phase) {
  Json::Array problems;
  for (const std::string& problem : phase.problems)
    problems.emplace_back(problem);
  return Json::Object{{"name", phase.name},
                      {"instance", phase.connector.empty() ? Json("single") : Json(phase.name)},
                      {"connector", phase.connector.empty() ? Json() : Json(phase.connector)},
                      {"level", phase.level},
                      {"cycle", phase.cycle},
                      {"compared", phase.compared},
                      {"identical", phase.identical},
                      {"wrong", phase.compared - phase.identical},
                      {"prompt_tokens", phase.prompt_tokens},
                      {"transferred_tokens", phase.transferred_tokens},
                      {"recomputed_tokens", phase.recomputed_tokens},
                      {"stale_refused", phase.stale_refused},
                      {"sleep_ms", phase.sleep_ms},
                      {"wake_ms", phase.wake_ms},
                      {"asleep_bytes", phase.asleep_bytes},
                      {"freed_bytes", phase.freed},
                      {"expected_freed_bytes", phase.expected_freed},
                      {"backup_bytes", phase.backup_bytes},
                      {"problems", std::move(problems)}};
}

}  // namespace

std::size_t DemoReport::compared() const {
  std::size_t sum = 0;
  for (const PhaseResult& phase : phases)
    sum += phase.compared;
  return sum;
}

std::size_t DemoReport::identical() const {
  std::size_t sum = 0;
  for (const PhaseResult& phase : phases)
    sum += phase.identical;
  return sum;
}

std::uint64_t DemoReport::sum(std::uint64_t PhaseResult::*count) const {
  std::uint64_t total = 0;
  for (const PhaseResult& phase : phases)
    total += phase.*count;
  return total;
}

bool DemoReport::good() const {
  for (const PhaseResult& phase : phases)
    if (!phase.problems.empty())
      return false;
  return !phases.empty() && compared() > 0 && compared() == identical();
}

bool agrees(std::int64_t measured, std::uint64_t expected) {
  const double wanted = static_cast<double>(expected);
  return std::abs(static_cast<double>(measured) - wanted) <= 0.05 * wanted;
}

std::string table_head() {
  return fmt::format("{:<14} {:>5} {:>9} {:>9} {:>9} {:>10} {:>10} {:>10}  {}", "phase", "cycle",
                     "same", "sleep ms", "wake ms", "freed MiB", "held MiB", "backup MiB", "");
}

std::string table_row(const PhaseResult& phase) {
  std::string row =
      fmt::format("{:<14} {:>5} {:>9} {:>9.1f} {:>9.1f} {:>10.1f} {:>10.1f} {:>10.1f}  {}",
                  phase.connector.empty() || phase.level == 1
                      ? phase.name
                      : fmt::format("{} {}", phase.name, phase.level == 0 ? "KV only" : "level 2"),
                  phase.cycle, fmt::format("{}/{}", phase.identical, phase.compared),
                  phase.sleep_ms, phase.wake_ms, mebibytes(static_cast<double>(phase.freed)),
                  mebibytes(static_cast<double>(phase.asleep_bytes)),
                  mebibytes(static_cast<double>(phase.backup_bytes)),
                  phase.problems.empty() && phase.identical == phase.compared ? "ok" : "BAD");
  if (!phase.connector.empty())
    row +=
        fmt::format("  {}: {} tokens transferred, {} recomputed, {} stale refused", phase.connector,
                    phase.transferred_tokens, phase.recomputed_tokens, phase.stale_refused);
  for (const std::string& problem : phase.problems)
    row += "\n    " + problem;
  return row;
}

std::string to_json(const DemoReport& report) {
  Json::Array phases;
  for (const PhaseResult& phase : report.phases)
    phases.push_back(to_json_value(phase));
  return Json(Json::Object{{"prompts", report.prompts},
                           {"compared", report.compared()},
                           {"identical", report.identical()},
                           {"wrong", report.compared() - report.identical()},
                           {"transferred_tokens", report.sum(&PhaseResult::transferred_tokens)},
                           {"recomputed_tokens", report.sum(&PhaseResult::recomputed_tokens)},
                           {"stale_refused", report.sum(&PhaseResult::stale_refused)},
                           {"phases", std::move(phases)}})
      .dump();
}

}  // namespace dormouse::cli

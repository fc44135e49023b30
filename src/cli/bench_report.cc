#include "cli/bench_report.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/check.h"

namespace dormouse::cli {
namespace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      return line.substr(std::min(line.find(':') + 2, line.size()));
  return "unknown";
}

}  // namespace

double median(std::vector<double> values) {
  DM_CHECK(!values.empty(), "a median of nothing");
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double best(const std::vector<double>& milliseconds) {
  DM_CHECK(!milliseconds.empty(), "the best of nothing");
  return *std::ranges::min_element(milliseconds);
}

Json times_json(const std::vector<double>& milliseconds) {
  return Json::Object{{"median", median(milliseconds)}, {"best", best(milliseconds)}};
}

double phase_ms(const MemoryReceipt& receipt, std::string_view name) {
  for (const auto& [phase, ms] : receipt.phases_ms)
    if (phase == name)
      return ms;
  return 0;
}

double gigabytes_per_second(std::uint64_t bytes, double milliseconds) {
  return static_cast<double>(bytes) / milliseconds / 1e6;
}

Json machine_json() {
  double load = 0;
  if (::getloadavg(&load, 1) != 1)
    load = -1;
  return Json::Object{{"processor", processor_name()},
                      {"cores", std::thread::hardware_concurrency()},
                      {"load_average", load}};
}

}  // namespace dormouse::cli

// What a benchmark hands back, and the arithmetic that all share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"

namespace dormouse::cli {

struct BenchReport {
  std::string text;
  Json json;
};

double median(std::vector<double> values);  // of at least one
double best(const std::vector<double>& milliseconds);

// {"median": ..., "best": ...}
Json times_json(const std::vector<double>& milliseconds);

double gigabytes_per_second(std::uint64_t bytes, double milliseconds);

// Processor, cores and the load that was on them: what a reader needs to judge a figure.
Json machine_json();

}  // namespace dormouse::cli

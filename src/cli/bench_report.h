// What a benchmark hands back, and the arithmetic that all share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "dormouse/memory.h"

namespace dormouse::cli {

struct BenchReport {
  std::string text;
  Json json;
};

double median(std::vector<double> values);  // of at least one
double best(const std::vector<double>& milliseconds);

// {"median": ..., "best": ...}
Json times_json(const std::vector<double>& milliseconds);

// Of one phase of a transition; 0 if it had none of this name.
double phase_ms(const MemoryReceipt& receipt, std::string_view name);

double gigabytes_per_second(std::uint64_t bytes, double milliseconds);

// Processor, cores and the load that was on them: what a reader needs to judge a figure.
Json machine_json();

}  // namespace dormouse::cli

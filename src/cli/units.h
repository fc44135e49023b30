// Quantities as people write and read them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dormouse/result.h"

namespace dormouse::cli {

// "1.5 GiB", "512 B".
std::string format_bytes(double bytes);
// "12.5 ms", "3.20 s".
std::string format_duration(double seconds);
// "12,345"
std::string format_count(std::uint64_t value);
// "[######----]  60 %"
std::string format_bar(double fraction);

// "512M", "2GiB", "1.5G", "4096": powers of 1024. The error names `flag`.
Result<std::uint64_t> parse_bytes(std::string_view text, std::string_view flag);

double ms_since(std::chrono::steady_clock::time_point start);

// The candidate that is nearest to `word`, or empty if none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace dormouse::cli

#include "cli/units.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

namespace dormouse::cli {
namespace {

constexpr std::string_view kUnits = "KMGTP";

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string format_bytes(double bytes) {
  const char* sign = bytes < 0 ? "-" : "";
  double value = std::abs(bytes);
  if (value < 1024)
    return fmt::format("{}{:.0f} B", sign, value);
  std::size_t unit = 0;
  for (value /= 1024; value >= 1023.95 && unit + 1 < kUnits.size(); ++unit)
    value /= 1024;
  return fmt::format("{}{:.1f} {}iB", sign, value, kUnits[unit]);
}

std::string format_duration(double seconds) {
  return seconds < 1 ? fmt::format("{:.1f} ms", seconds * 1e3) : fmt::format("{:.2f} s", seconds);
}

std::string format_count(std::uint64_t value) {
  const std::string digits = std::to_string(value);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0)
      out += ',';
    out += digits[i];
  }
  return out;
}

std::string format_bar(double fraction) {
  constexpr std::size_t kWidth = 30;
  const double share = std::clamp(fraction, 0.0, 1.0);
  const auto done = static_cast<std::size_t>(share * kWidth);
  return fmt::format("[{}{}] {:3.0f} %", std::string(done, '#'), std::string(kWidth - done, '-'),
                     share * 100);
}

Result<std::uint64_t> parse_bytes(std::string_view text, std::string_view flag) {
  const auto invalid = [&] {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: \"{}\" is not a size like 512M, 2GiB or 1073741824", flag, text),
                std::string(flag));
  };
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (error != std::errc() || !(value >= 0))
    return invalid();
  std::string_view suffix(stop, static_cast<std::size_t>(end - stop));
  if (!suffix.empty() && suffix != "B") {
    const char letter = suffix[0] >= 'a' ? static_cast<char>(suffix[0] - 'a' + 'A') : suffix[0];
    const std::size_t power = kUnits.find(letter);
    suffix.remove_prefix(1);
    if (power == std::string_view::npos || !(suffix.empty() || suffix == "B" || suffix == "iB"))
      return invalid();
    value *= std::pow(1024.0, static_cast<double>(power + 1));
  }
  constexpr double kMost = 1ULL << 62;
  if (value > kMost)
    return invalid();
  return static_cast<std::uint64_t>(value);
}

double ms_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace dormouse::cli

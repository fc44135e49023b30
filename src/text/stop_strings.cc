#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace dormouse::text {

StopStrings::StopStrings(std::vector<std::string> stops, bool include_stop)
    : include_stop_(include_stop) {
  for (std::string& stop : stops) {
    if (stop.empty())
      continue;
    Pattern pattern{std::move(stop), {0}};
    for (std::size_t i = 1, border = 0; i < pattern.text.size(); ++i) {
      while (border > 0 && pattern.text[i] != pattern.text[border])
        border = pattern.borders[border - 1];
      if (pattern.text[i] == pattern.text[border])
        ++border;
      pattern.borders.push_back(border);
    }
    patterns_.push_back(std::move(pattern));
  }
}

bool StopStrings::advance(Pattern& pattern, char next) {
  while (pattern.progress > 0 && pattern.text[pattern.progress] != next)
    pattern.progress = pattern.borders[pattern.progress - 1];
  if (pattern.text[pattern.progress] == next)
    ++pattern.progress;
  return pattern.progress == pattern.text.size();
}

StopStrings::Output StopStrings::push(std::string_view text) {
  if (matched_)
    return {{}, true};
  for (const char next : text) {
    held_.push_back(next);
    const Pattern* match = nullptr;
    for (Pattern& pattern : patterns_) {
      const bool complete = advance(pattern, next);
      if (complete && (match == nullptr || pattern.text.size() > match->text.size()))
        match = &pattern;
    }
    if (match != nullptr) {
      matched_ = match->text;
      if (!include_stop_)
        held_.resize(held_.size() - match->text.size());
      return {std::exchange(held_, {}), true};
    }
  }
  std::size_t keep = 0;
  for (const Pattern& pattern : patterns_)
    keep = std::max(keep, pattern.progress);
  Output output{held_.substr(0, held_.size() - keep), false};
  held_.erase(0, output.text.size());
  return output;
}

std::string StopStrings::flush() {
  for (Pattern& pattern : patterns_)
    pattern.progress = 0;
  return std::exchange(held_, {});
}

}  // namespace dormouse::text

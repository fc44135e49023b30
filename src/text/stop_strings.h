// Ends a text at the first stop string, never emitting a part of one.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dormouse::text {

// The first match is the one that ends first; of those that end together, the longest.
//
// Owns:    the text held back, shorter than the longest stop string.
// Threads: one at a time.
// Cost:    each push is linear in the text and in the stop strings.
class StopStrings {
 public:
  // Empty stop strings never match. `include_stop`: the stop string itself is emitted, too.
  StopStrings(std::vector<std::string> stops, bool include_stop);

  struct Output {
    std::string text;      // safe to emit
    bool matched = false;  // generation ends; later pushes return nothing
  };
  Output push(std::string_view text);
  // At the end without a match: what was held back.
  std::string flush();

  // Which of the stop strings matched.
  const std::optional<std::string>& matched() const { return matched_; }

 private:
  // A stop string, and how much of it the text so far ends with.
  struct Pattern {
    std::string text;
    std::vector<std::size_t> borders;  // Knuth, Morris, Pratt: for each prefix, its longest border
    std::size_t progress = 0;
  };
  static bool advance(Pattern& pattern, char next);

  std::vector<Pattern> patterns_;
  bool include_stop_;
  std::string held_;
  std::optional<std::string> matched_;
};

}  // namespace dormouse::text

// Finds control and user-defined tokens in text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dormouse/request.h"

namespace dormouse::text {

// Threads: any, once filled.
class SpecialTokens {
 public:
  struct Match {
    TokenId token;
    std::size_t length;
  };

  // `control`: recognised in trusted text only.
  void add(std::string text, TokenId token, bool control);

  // The longest token that `text` starts with. The first `trusted_length` bytes are trusted.
  std::optional<Match> match(std::string_view text, std::size_t trusted_length) const;

 private:
  struct Entry {
    std::string text;
    TokenId token;
    bool control;
  };
  std::unordered_map<char, std::vector<Entry>> by_first_byte_;  // each longest first
};

}  // namespace dormouse::text

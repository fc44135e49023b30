// A template's source as tokens, white space control done: trim_blocks and lstrip_blocks are on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dormouse/result.h"

namespace dormouse::text::jinja {

struct Token {
  enum class Kind {
    kText,         // template text outside of all braces
    kOutputBegin,  // {{
    kOutputEnd,    // }}
    kBlockBegin,   // {%
    kBlockEnd,     // %}
    kName,
    kString,  // `text` is its value
    kInteger,
    kReal,
    kOperator,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 0;

  bool is(Kind k, std::string_view t) const { return kind == k && text == t; }
};

// Ends with a kEnd token. Errors: kInvalidArgument with the line.
Result<std::vector<Token>> tokenize(std::string_view source);

// An error about a line of the template.
tl::unexpected<Error> fail_at(int line, std::string_view message,
                              ErrorCode code = ErrorCode::kInvalidArgument);

}  // namespace dormouse::text::jinja

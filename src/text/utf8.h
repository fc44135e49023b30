// UTF-8, one character at a time, with the replacement rule of Rust, Python and the WHATWG: each
// maximal part of an ill-formed sequence counts as one U+FFFD.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dormouse::text {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

struct Utf8Char {
  char32_t code_point = kReplacementCharacter;  // U+FFFD unless `state` is kValid
  std::size_t length = 0;                       // bytes taken, at least 1
  enum class State {
    kValid,
    kInvalid,
    kTruncated,  // the text ends inside a sequence that more bytes could complete
  } state = State::kInvalid;
};

// The character at the start of `text`, which is not empty.
Utf8Char decode_utf8(std::string_view text);

void append_utf8(std::string& out, char32_t code_point);

// The same text with every ill-formed part replaced by U+FFFD.
std::string to_valid_utf8(std::string_view text);

}  // namespace dormouse::text

#include "text/utf8.h"

#include <cstdint>

namespace dormouse::text {
namespace {

// What a lead byte promises: the bytes that follow, and the range that the first of them must be
// in.
struct Lead {
  int continuations = -1;
  std::uint8_t low = 0x80;
  std::uint8_t high = 0xBF;
};

Lead lead_of(std::uint8_t byte) {
  if (byte < 0x80)
    return {0};
  if (byte >= 0xC2 && byte <= 0xDF)
    return {1};
  if (byte == 0xE0)
    return {2, 0xA0, 0xBF};
  if (byte == 0xED)
    return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF)
    return {2};
  if (byte == 0xF0)
    return {3, 0x90, 0xBF};
  if (byte == 0xF4)
    return {3, 0x80, 0x8F};
  if (byte >= 0xF1 && byte <= 0xF3)
    return {3};
  return {};
}

}  // namespace

Utf8Char decode_utf8(std::string_view text) {
  const auto first = static_cast<std::uint8_t>(text[0]);
  const Lead lead = lead_of(first);
  if (lead.continuations < 0)
    return {kReplacementCharacter, 1, Utf8Char::State::kInvalid};
  if (lead.continuations == 0)
    return {first, 1, Utf8Char::State::kValid};
  const auto count = static_cast<std::size_t>(lead.continuations);
  char32_t code_point = first & (0x3FU >> count);
  for (std::size_t i = 1; i <= count; ++i) {
    if (i == text.size())
      return {kReplacementCharacter, i, Utf8Char::State::kTruncated};
    const auto byte = static_cast<std::uint8_t>(text[i]);
    const bool fits = i == 1 ? byte >= lead.low && byte <= lead.high : (byte & 0xC0) == 0x80;
    if (!fits)
      return {kReplacementCharacter, i, Utf8Char::State::kInvalid};
    code_point = (code_point << 6) | (byte & 0x3FU);
  }
  return {code_point, count + 1, Utf8Char::State::kValid};
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  const auto put_tail = [&](int shift) { put(0x80 | ((code_point >> shift) & 0x3F)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put_tail(0);
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put_tail(6);
    put_tail(0);
  } else {
    put(0xF0 | (code_point >> 18));
    put_tail(12);
    put_tail(6);
    put_tail(0);
  }
}

std::string to_valid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    append_utf8(valid, decode_utf8(text).code_point);
    text.remove_prefix(decode_utf8(text).length);
  }
  return valid;
}

}  // namespace dormouse::text

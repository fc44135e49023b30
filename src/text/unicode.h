// The few Unicode properties that pre-tokenisers ask for. Letters and spaces are those of Unicode
// 15.0 (utf8proc 2.8), numbers those of Unicode 17.0.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dormouse::text {

enum class CharClass : std::uint8_t {
  kLetter,  // general category L
  kNumber,  // general category N
  kSpace,   // White_Space
  kOther,
};
CharClass class_of(char32_t code_point);

// Normal form C. Linear in the length but for the sorting of each run of combining marks.
std::string to_nfc(std::string_view valid_utf8);

}  // namespace dormouse::text

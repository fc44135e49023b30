#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "text/utf8.h"

namespace dormouse::text {
namespace {

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// Numbers that Unicode 16 and 17 have added to what utf8proc knows.
bool is_new_number(char32_t c) {
  static constexpr std::array<std::array<char32_t, 2>, 9> kRanges{{{0x10D40, 0x10D49},
                                                                   {0x116D0, 0x116E3},
                                                                   {0x11BF0, 0x11BF9},
                                                                   {0x11DE0, 0x11DE9},
                                                                   {0x16130, 0x16139},
                                                                   {0x16D70, 0x16D79},
                                                                   {0x16FF4, 0x16FF6},
                                                                   {0x1CCF0, 0x1CCF9},
                                                                   {0x1E5F1, 0x1E5FA}}};
  return std::any_of(kRanges.begin(), kRanges.end(),
                     [&](const auto& range) { return c >= range[0] && c <= range[1]; });
}

utf8proc_propval_t combining_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// utf8proc's own ordering is quadratic in a run of marks, which a prompt can make as long as it
// likes.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  const auto is_starter = [](utf8proc_int32_t c) { return combining_class(c) == 0; };
  for (auto run = text.begin(); run != text.end();) {
    run = std::find_if_not(run, text.end(), is_starter);
    const auto end = std::find_if(run, text.end(), is_starter);
    std::stable_sort(run, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    run = end;
  }
}

}  // namespace

CharClass class_of(char32_t code_point) {
  if (is_white_space(code_point))
    return CharClass::kSpace;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass::kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::kNumber;
    case UTF8PROC_CATEGORY_CN:
      return is_new_number(code_point) ? CharClass::kNumber : CharClass::kOther;
    default:
      return CharClass::kOther;
  }
}

std::string to_nfc(std::string_view valid_utf8) {
  // Everything below U+0300 is its own normal form: lead bytes up to 0xCB.
  const auto may_change = [](char c) { return static_cast<unsigned char>(c) >= 0xCC; };
  if (std::none_of(valid_utf8.begin(), valid_utf8.end(), may_change))
    return std::string(valid_utf8);

  std::vector<utf8proc_int32_t> text;
  text.reserve(valid_utf8.size());
  while (!valid_utf8.empty()) {
    const Utf8Char next = decode_utf8(valid_utf8);
    valid_utf8.remove_prefix(next.length);
    std::array<utf8proc_int32_t, 32> parts;  // the longest canonical decomposition has 4
    int boundary_class = 0;
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(next.code_point), parts.data(),
                                parts.size(), UTF8PROC_DECOMPOSE, &boundary_class);
    DM_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()),
             "a code point that does not decompose");
    text.insert(text.end(), parts.begin(), parts.begin() + count);
  }
  order_marks(text);
  const auto length =
      utf8proc_normalize_utf32(text.data(), static_cast<utf8proc_ssize_t>(text.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  std::string normal;
  for (utf8proc_ssize_t i = 0; i < length; ++i)
    append_utf8(normal, static_cast<char32_t>(text[static_cast<std::size_t>(i)]));
  return normal;
}

}  // namespace dormouse::text

#include <utf8proc.h>

#include <algorithm>

#include "base/check.h"
#include "text/jinja/functions.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace dormouse::text::jinja {
namespace {

char32_t to_case(char32_t c, bool upper) {
  const auto code_point = static_cast<utf8proc_int32_t>(c);
  return static_cast<char32_t>(upper ? utf8proc_toupper(code_point) : utf8proc_tolower(code_point));
}

// Applies `change(code point, index of the character)` to each character.
template <class Change>
MarkedString map_characters(const MarkedString& text, Change change) {
  MarkedString out;
  std::size_t index = 0;
  for (std::size_t at = 0; at < text.size(); ++index) {
    const Utf8Char next = decode_utf8(std::string_view(text.text()).substr(at));
    std::string changed;
    append_utf8(changed, change(next.code_point, index));
    out.append_as(changed, text, at);
    at += next.length;
  }
  return out;
}

// As Python's str.strip: the separators U+001C to U+001F count, too.
bool is_python_space(char32_t c) {
  return class_of(c) == CharClass::kSpace || (c >= 0x1C && c <= 0x1F);
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

}  // namespace

MarkedString strip(const MarkedString& text, std::string_view characters, bool left, bool right) {
  std::u32string wanted;
  for (; !characters.empty(); characters.remove_prefix(decode_utf8(characters).length))
    wanted.push_back(decode_utf8(characters).code_point);
  const bool spaces = wanted.empty();
  std::size_t start = std::string::npos;
  std::size_t end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char next = decode_utf8(std::string_view(text.text()).substr(at));
    const bool goes = spaces ? is_python_space(next.code_point)
                             : wanted.find(next.code_point) != std::u32string::npos;
    if (!goes) {
      start = std::min(start, at);
      end = at + next.length;
    }
    at += next.length;
  }
  if (start == std::string::npos)
    return left || right ? MarkedString() : text;
  const std::size_t from = left ? start : 0;
  return text.substr(from, right ? end - from : std::string::npos);
}

MarkedString change_case(const MarkedString& text, bool upper) {
  return map_characters(text, [&](char32_t c, std::size_t) { return to_case(c, upper); });
}

MarkedString capitalize(const MarkedString& text) {
  return map_characters(text, [](char32_t c, std::size_t index) { return to_case(c, index == 0); });
}

MarkedString title(const MarkedString& text) {
  bool inside = false;
  return map_characters(text, [&](char32_t c, std::size_t) {
    const char32_t changed = to_case(c, !inside);
    inside = !is_python_space(c) && std::u32string_view(U"-([{<").find(c) == std::u32string::npos;
    return changed;
  });
}

Result<MarkedString> replace(const MarkedString& text, std::string_view from,
                             const MarkedString& to, std::int64_t count, Budget& budget) {
  if (from.empty())
    return fail(ErrorCode::kUnsupported, "replacing the empty string is not supported");
  MarkedString out;
  std::size_t at = 0;
  for (; count != 0 && out.size() <= Budget::kMaxStringBytes; --count) {
    const std::size_t found = text.text().find(from, at);
    if (found == std::string::npos)
      break;
    out.append(text.substr(at, found - at));
    out.append(to);
    at = found + from.size();
  }
  out.append(text.substr(at));
  DM_TRY(budget.spend_string(out.size()));
  return out;
}

std::vector<MarkedString> split(const MarkedString& text, std::string_view separator,
                                std::int64_t limit) {
  std::vector<MarkedString> parts;
  std::size_t at = 0;
  for (; limit != 0; --limit) {
    const std::size_t found = text.text().find(separator, at);
    if (found == std::string::npos)
      break;
    parts.push_back(text.substr(at, found - at));
    at = found + separator.size();
  }
  parts.push_back(text.substr(at));
  return parts;
}

std::vector<MarkedString> split_spaces(const MarkedString& text, std::int64_t limit) {
  std::vector<MarkedString> parts;
  MarkedString rest = strip(text, "", true, false);
  std::size_t start = 0;
  bool inside = false;
  const std::string_view bytes = rest.text();
  for (std::size_t at = 0; at < bytes.size();) {
    const Utf8Char next = decode_utf8(bytes.substr(at));
    const bool space = is_python_space(next.code_point);
    if (space && inside) {
      parts.push_back(rest.substr(start, at - start));
    } else if (!space && !inside) {
      start = at;
      if (limit >= 0 && static_cast<std::int64_t>(parts.size()) == limit) {
        parts.push_back(rest.substr(start));
        return parts;
      }
    }
    inside = !space;
    at += next.length;
  }
  if (inside)
    parts.push_back(rest.substr(start));
  return parts;
}

std::vector<MarkedString> split_lines(const MarkedString& text) {
  std::vector<MarkedString> lines;
  std::size_t start = 0;
  const std::string_view bytes = text.text();
  for (std::size_t at = 0; at < bytes.size();) {
    const Utf8Char next = decode_utf8(bytes.substr(at));
    if (is_line_end(next.code_point)) {
      lines.push_back(text.substr(start, at - start));
      const bool pair = bytes.substr(at).starts_with("\r\n");
      at += pair ? 1 : 0;
      start = at + next.length;
    }
    at += next.length;
  }
  if (start < text.size())
    lines.push_back(text.substr(start));
  return lines;
}

}  // namespace dormouse::text::jinja

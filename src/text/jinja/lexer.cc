#include "text/jinja/lexer.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/check.h"
#include "text/utf8.h"

namespace dormouse::text::jinja {
namespace {

constexpr std::string_view kSpaces = " \t\n\r\f\v";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_name_part(char c) {
  return is_name_start(c) || is_digit(c);
}

std::string with_plain_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n')
      continue;
    out.push_back(source[i] == '\r' ? '\n' : source[i]);
  }
  if (!out.empty() && out.back() == '\n')
    out.pop_back();  // one newline at the end of a file is not meant
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  Result<std::vector<Token>> run() {
    while (at_ < source_.size()) {
      const std::size_t tag = find_tag();
      add_text(source_.substr(at_, tag - at_), tag);
      move_to(tag);
      if (tag == source_.size())
        break;
      DM_TRY(read_tag());
    }
    add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  bool at(std::string_view what) const { return source_.substr(at_).starts_with(what); }

  void move_to(std::size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    at_ = end;
  }
  void skip_spaces() { move_to(std::min(source_.size(), source_.find_first_not_of(kSpaces, at_))); }

  void add(Token::Kind kind, std::string_view text) {
    tokens_.push_back({kind, std::string(text), line_});
  }

  std::size_t find_tag() const {
    for (std::size_t i = source_.find('{', at_); i != std::string_view::npos;
         i = source_.find('{', i + 1)) {
      const char next = i + 1 < source_.size() ? source_[i + 1] : '\0';
      if (next == '{' || next == '%' || next == '#')
        return i;
    }
    return source_.size();
  }

  // Adds the text before the tag at `tag`, less the white space that the tag takes away.
  void add_text(std::string_view text, std::size_t tag) {
    if (tag < source_.size()) {
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      if (sign == '-') {
        text = text.substr(0, text.find_last_not_of(kSpaces) + 1);
      } else if (sign != '+' && source_[tag + 1] != '{') {
        const std::size_t start = text.rfind('\n') + 1;  // 0 if there is none
        const bool blank = text.find_first_not_of(kSpaces, start) == std::string_view::npos;
        if (blank && (start > 0 || line_starts_))
          text = text.substr(0, start);
      }
    }
    if (!text.empty())
      add(Token::Kind::kText, text);
  }

  Status read_tag() {
    if (at("{#"))
      return read_comment();
    const bool block = at("{%");
    move_to(at_ + 2);
    if (at("-") || at("+"))
      move_to(at_ + 1);
    if (block && is_raw_tag())
      return read_raw();
    add(block ? Token::Kind::kBlockBegin : Token::Kind::kOutputBegin, "");
    return read_expression(block);
  }

  // After the end of a tag, "%}" and the like: what it takes away of the text that follows.
  void end_tag(bool strip, bool trim) {
    if (strip)
      skip_spaces();
    else if (trim && at("\n"))
      move_to(at_ + 1);
    line_starts_ = source_[at_ - 1] == '\n';
  }

  Status read_comment() {
    const int line = line_;
    const std::size_t end = source_.find("#}", at_ + 2);
    if (end == std::string_view::npos)
      return fail_at(line, "the comment does not end");
    const char sign = source_[end - 1];
    move_to(end + 2);
    end_tag(sign == '-', sign != '+');
    return {};
  }

  // The end of "{% NAME %}" whose name begins behind spaces at `from`; npos if it is another tag.
  std::size_t end_of_plain_tag(std::size_t from, std::string_view name) const {
    from = source_.find_first_not_of(kSpaces, from);
    if (from == std::string_view::npos || !source_.substr(from).starts_with(name))
      return std::string_view::npos;
    from = source_.find_first_not_of(kSpaces, from + name.size());
    if (from == std::string_view::npos)
      return from;
    if (source_[from] == '-' || source_[from] == '+')
      ++from;
    return source_.substr(from).starts_with("%}") ? from + 2 : std::string_view::npos;
  }
  bool is_raw_tag() const { return end_of_plain_tag(at_, "raw") != std::string_view::npos; }

  Status read_raw() {
    const int line = line_;
    const std::size_t start = end_of_plain_tag(at_, "raw");
    const bool strip_start = source_[start - 3] == '-';
    move_to(start);
    end_tag(strip_start, false);
    for (std::size_t tag = source_.find("{%", at_); tag != std::string_view::npos;
         tag = source_.find("{%", tag + 2)) {
      const bool sign =
          tag + 2 < source_.size() && (source_[tag + 2] == '-' || source_[tag + 2] == '+');
      const std::size_t end = end_of_plain_tag(tag + (sign ? 3 : 2), "endraw");
      if (end == std::string_view::npos)
        continue;
      add_text(source_.substr(at_, tag - at_), tag);
      move_to(end);
      end_tag(source_[end - 3] == '-', source_[end - 3] != '+');
      return {};
    }
    return fail_at(line, "the raw block does not end");
  }

  Status read_expression(bool block) {
    const std::string_view end = block ? "%}" : "}}";
    const auto end_kind = block ? Token::Kind::kBlockEnd : Token::Kind::kOutputEnd;
    const int line = line_;
    int braces = 0;
    while (true) {
      skip_spaces();
      if (at_ == source_.size())
        return fail_at(line, block ? "the block tag does not end" : "the output does not end");
      const bool sign = (at("-") || (block && at("+"))) && source_.substr(at_ + 1).starts_with(end);
      if (braces == 0 && (sign || at(end))) {
        const char mark = source_[at_];
        move_to(at_ + end.size() + (sign ? 1 : 0));
        add(end_kind, "");
        end_tag(mark == '-', block && mark != '+');
        return {};
      }
      DM_TRY(read_token(braces));
    }
  }

  Status read_token(int& braces) {
    const char c = source_[at_];
    if (c == '\'' || c == '"')
      return read_string();
    if (is_digit(c))
      return read_number();
    if (is_name_start(c)) {
      std::size_t end = at_;
      while (end < source_.size() && is_name_part(source_[end]))
        ++end;
      add(Token::Kind::kName, source_.substr(at_, end - at_));
      move_to(end);
      return {};
    }
    static constexpr std::array<std::string_view, 25> kOperators{
        "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "<", ">",
        "=",  "(",  ")",  "[",  "]",  "{",  "}", ",", ".", ":", "|", "~"};
    for (const std::string_view op : kOperators) {
      if (!at(op))
        continue;
      if (op == "(" || op == "[" || op == "{")
        ++braces;
      if (op == ")" || op == "]" || op == "}")
        --braces;
      if (braces < 0)
        return fail_at(line_, fmt::format("unexpected '{}'", op));
      add(Token::Kind::kOperator, op);
      move_to(at_ + op.size());
      return {};
    }
    return fail_at(line_, fmt::format("unexpected character '{}'", c));
  }

  Status read_number() {
    std::size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && (is_digit(source_[end]) || source_[end] == '_'))
        ++end;
    };
    const auto digit_at = [&](std::size_t i) { return i < source_.size() && is_digit(source_[i]); };
    digits();
    bool real = false;
    if (end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
      real = true;
      ++end;
      digits();
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const bool sign =
          end + 1 < source_.size() && (source_[end + 1] == '-' || source_[end + 1] == '+');
      if (digit_at(end + (sign ? 2 : 1))) {
        real = true;
        end += sign ? 2 : 1;
        digits();
      }
    }
    std::string number(source_.substr(at_, end - at_));
    std::erase(number, '_');
    add(real ? Token::Kind::kReal : Token::Kind::kInteger, number);
    move_to(end);
    return {};
  }

  Status read_string() {
    const char quote = source_[at_];
    const int line = line_;
    std::string text;
    for (std::size_t i = at_ + 1; i < source_.size(); ++i) {
      if (source_[i] == quote) {
        tokens_.push_back({Token::Kind::kString, std::move(text), line});
        move_to(i + 1);
        return {};
      }
      if (source_[i] != '\\') {
        text.push_back(source_[i]);
        continue;
      }
      if (++i < source_.size())
        read_escape(i, text);
    }
    return fail_at(line, "the string does not end");
  }

  // `i` is at the character after the backslash, and at the escape's last one afterwards.
  void read_escape(std::size_t& i, std::string& text) const {
    static constexpr std::string_view kPlain = "\\'\"abfnrtv";
    static constexpr std::string_view kMeaning = "\\'\"\a\b\f\n\r\t\v";
    const char c = source_[i];
    if (const auto plain = kPlain.find(c); plain != std::string_view::npos) {
      text.push_back(kMeaning[plain]);
      return;
    }
    if (c == '\n')
      return;
    const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    const std::string_view hex = source_.substr(i + 1, digits);
    const auto is_hex = [](char h) { return std::isxdigit(static_cast<unsigned char>(h)) != 0; };
    if (digits == 0 || hex.size() < digits || !std::all_of(hex.begin(), hex.end(), is_hex)) {
      text += {'\\', c};
      return;
    }
    const auto code_point = std::stoul(std::string(hex), nullptr, 16);
    const bool exists = code_point < 0x110000 && (code_point < 0xD800 || code_point > 0xDFFF);
    append_utf8(text, exists ? static_cast<char32_t>(code_point) : kReplacementCharacter);
    i += digits;
  }

  std::string_view source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) {
  const std::string plain = with_plain_newlines(source);
  return Lexer(plain).run();
}

tl::unexpected<Error> fail_at(int line, std::string_view message, ErrorCode code) {
  return fail(code, fmt::format("chat template, line {}: {}", line, message), "chat_template");
}

}  // namespace dormouse::text::jinja

#include "text/pre_tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "text/unicode.h"
#include "text/utf8.h"

namespace dormouse::text {
namespace {

struct Char {
  char32_t code_point;
  CharClass kind;
  std::size_t offset;  // bytes from the start of the text
};

// The text as characters, and the questions that all schemes ask at a position. Positions past the
// end have no class, so no comparison below needs a bound.
class Scanner {
 public:
  explicit Scanner(std::string_view text) {
    chars_.reserve(text.size() + 1);
    for (std::size_t at = 0; at < text.size();) {
      const Utf8Char next = decode_utf8(text.substr(at));
      chars_.push_back({next.code_point, class_of(next.code_point), at});
      at += next.length;
    }
    size_ = chars_.size();
    chars_.push_back({0, CharClass::kOther, text.size()});
  }

  std::size_t size() const { return size_; }
  std::size_t offset(std::size_t at) const { return chars_[at].offset; }
  bool is(std::size_t at, CharClass kind) const { return at < size_ && chars_[at].kind == kind; }
  bool is(std::size_t at, char32_t code_point) const {
    return at < size_ && chars_[at].code_point == code_point;
  }
  bool is_newline(std::size_t at) const { return is(at, U'\n') || is(at, U'\r'); }

  std::size_t end_of_run(std::size_t at, CharClass kind, std::size_t limit) const {
    while (at < limit && is(at, kind))
      ++at;
    return at;
  }

  // The end of 's 't 're 've 'm 'll 'd at `at`, or `at`.
  std::size_t end_of_contraction(std::size_t at, bool any_case) const {
    if (!is(at, U'\''))
      return at;
    const char32_t first = letter(at + 1, any_case);
    if (first == U's' || first == U't' || first == U'm' || first == U'd')
      return at + 2;
    const char32_t second = letter(at + 2, any_case);
    const bool two = (first == U'r' && second == U'e') || (first == U'v' && second == U'e') ||
                     (first == U'l' && second == U'l');
    return two ? at + 3 : at;
  }

  // \s+(?!\S)|\s+ : a run of spaces leaves its last one to the word that follows.
  std::size_t end_of_spaces(std::size_t at, std::size_t limit) const {
    const std::size_t end = end_of_run(at, CharClass::kSpace, limit);
    return end == limit || end == at + 1 ? end : end - 1;
  }

 private:
  char32_t letter(std::size_t at, bool any_case) const {
    if (at >= size_)
      return 0;
    const char32_t c = chars_[at].code_point;
    if (any_case && c >= U'A' && c <= U'Z')
      return c + 32;
    return any_case && c == 0x17F ? U's' : c;  // U+017F folds to s
  }

  std::vector<Char> chars_;
  std::size_t size_ = 0;
};

std::size_t gpt2_word(const Scanner& text, std::size_t at, std::size_t limit) {
  if (const std::size_t end = text.end_of_contraction(at, false); end != at)
    return end;
  const std::size_t start = text.is(at, U' ') && at + 1 < limit ? at + 1 : at;
  for (const CharClass kind : {CharClass::kLetter, CharClass::kNumber, CharClass::kOther}) {
    if (const std::size_t end = text.end_of_run(start, kind, limit); end != start)
      return end;
  }
  return text.end_of_spaces(at, limit);
}

std::size_t smollm_word(const Scanner& text, std::size_t at, std::size_t& segment_end) {
  if (text.is(at, CharClass::kNumber))
    return at + 1;
  if (segment_end <= at) {
    segment_end = at;
    while (segment_end < text.size() && !text.is(segment_end, CharClass::kNumber))
      ++segment_end;
  }
  return gpt2_word(text, at, segment_end);
}

std::size_t llama3_word(const Scanner& text, std::size_t at, std::size_t max_numbers) {
  if (const std::size_t end = text.end_of_contraction(at, true); end != at)
    return end;
  const std::size_t size = text.size();
  const bool may_lead =
      !text.is_newline(at) && !text.is(at, CharClass::kLetter) && !text.is(at, CharClass::kNumber);
  const std::size_t letters = may_lead ? at + 1 : at;
  if (const std::size_t end = text.end_of_run(letters, CharClass::kLetter, size); end != letters)
    return end;
  if (text.is(at, CharClass::kNumber))
    return text.end_of_run(at, CharClass::kNumber, std::min(size, at + max_numbers));
  const std::size_t others = text.is(at, U' ') ? at + 1 : at;
  if (std::size_t end = text.end_of_run(others, CharClass::kOther, size); end != others) {
    while (text.is_newline(end))
      ++end;
    return end;
  }
  // \s*[\r\n]+ : up to the last newline of the run of spaces.
  for (std::size_t end = text.end_of_run(at, CharClass::kSpace, size); end != at; --end) {
    if (text.is_newline(end - 1))
      return end;
  }
  return text.end_of_spaces(at, size);
}

}  // namespace

Result<PreTokenizer> parse_pre_tokenizer(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, PreTokenizer>, 10> kNames{{
      {"gpt-2", PreTokenizer::kGpt2},
      {"smollm", PreTokenizer::kSmollm},
      {"starcoder", PreTokenizer::kSmollm},
      {"refact", PreTokenizer::kSmollm},
      {"command-r", PreTokenizer::kSmollm},
      {"llama-bpe", PreTokenizer::kLlama3},
      {"llama3", PreTokenizer::kLlama3},
      {"llama-v3", PreTokenizer::kLlama3},
      {"qwen2", PreTokenizer::kQwen2},
      {"deepseek-r1-qwen", PreTokenizer::kQwen2},
  }};
  std::string known;
  for (const auto& [known_name, scheme] : kNames) {
    if (known_name == name)
      return scheme;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", known_name);
  }
  return fail(ErrorCode::kUnsupported,
              fmt::format("pre-tokenizer '{}' is not supported; known are: {}", name, known),
              "tokenizer.ggml.pre");
}

bool normalizes_to_nfc(PreTokenizer scheme) {
  return scheme == PreTokenizer::kQwen2;
}

bool ignores_merges_of_whole_words(PreTokenizer scheme) {
  return scheme == PreTokenizer::kLlama3;
}

void split_words(PreTokenizer scheme, std::string_view valid_utf8,
                 const std::function<void(std::string_view)>& word) {
  const Scanner text(valid_utf8);
  std::size_t segment_end = 0;
  const auto next_word = [&](std::size_t at) {
    switch (scheme) {
      case PreTokenizer::kGpt2:
        return gpt2_word(text, at, text.size());
      case PreTokenizer::kSmollm:
        return smollm_word(text, at, segment_end);
      case PreTokenizer::kLlama3:
        return llama3_word(text, at, 3);
      case PreTokenizer::kQwen2:
        return llama3_word(text, at, 1);
    }
    return text.size();
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = next_word(at);
    word(valid_utf8.substr(text.offset(at), text.offset(end) - text.offset(at)));
    at = end;
  }
}

}  // namespace dormouse::text

#include "text/pre_tokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/unicode.h"
#include "text/utf8.h"

namespace dormouse::text {
namespace {

using Words = std::vector<std::string>;

Words words(PreTokenizer scheme, std::string_view text) {
  Words found;
  split_words(scheme, text, [&](std::string_view word) { found.emplace_back(word); });
  return found;
}

TEST(PreTokenizer, CutsAsGpt2) {
  const auto cut = [](std::string_view text) { return words(PreTokenizer::kGpt2, text); };
  EXPECT_EQ(cut("I'll go, 123 DON'T"), (Words{"I", "'ll", " go", ",", " 123", " DON", "'", "T"}));
  EXPECT_EQ(cut("a  b \n"), (Words{"a", " ", " b", " \n"}));
  EXPECT_EQ(cut(""), Words{});
}

TEST(PreTokenizer, CutsEveryNumberAloneAsSmollm) {
  EXPECT_EQ(words(PreTokenizer::kSmollm, "a  12 b"), (Words{"a", "  ", "1", "2", " b"}));
  EXPECT_EQ(words(PreTokenizer::kSmollm, "  \U00010D40"), (Words{"  ", "\U00010D40"}));
}

TEST(PreTokenizer, CutsAsLlama3) {
  const auto cut = [](std::string_view text) { return words(PreTokenizer::kLlama3, text); };
  EXPECT_EQ(cut("DON'T (x) 12345"), (Words{"DON", "'T", " (", "x", ")", " ", "123", "45"}));
  EXPECT_EQ(cut("a.\n\n  b"), (Words{"a", ".\n\n", " ", " b"}));
  EXPECT_EQ(cut("a \n \n  \tb"), (Words{"a", " \n \n", "  ", "\tb"}));
  EXPECT_EQ(cut("it'\u017F"), (Words{"it", "'\u017F"}));
}

TEST(PreTokenizer, CutsAsQwen2) {
  EXPECT_EQ(words(PreTokenizer::kQwen2, " 123"), (Words{" ", "1", "2", "3"}));
}

TEST(Unicode, ComposesToNormalFormC) {
  EXPECT_EQ(to_nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(to_nfc("a\u0308\u0323"), "\u1EA1\u0308");
  EXPECT_EQ(to_nfc("\u1112\u1161\u11AB \u2126"), "\uD55C \u03A9");
  EXPECT_EQ(to_nfc("plain"), "plain");
}

TEST(Unicode, OrdersALongRunOfMarksInReasonableTime) {
  std::string marks = "a";
  for (int i = 0; i < 100'000; ++i)
    marks += "\u0323\u0308";
  const std::string normal = to_nfc(marks);
  EXPECT_TRUE(normal.starts_with("\u1EA1\u0323\u0323"));
  EXPECT_EQ(normal.size(), marks.size());
}

TEST(Utf8, ReplacesEachMaximalIllFormedPart) {
  EXPECT_EQ(to_valid_utf8("\xE4\xBD\xFFz\xC0\x80"), "\uFFFD\uFFFDz\uFFFD\uFFFD");
  EXPECT_EQ(to_valid_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(to_valid_utf8("\xF4\x90"), "\uFFFD\uFFFD");
  EXPECT_EQ(to_valid_utf8("é🙂"), "é🙂");
}

}  // namespace
}  // namespace dormouse::text

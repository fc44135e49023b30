#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <map>

#include "text/detokenizer.h"
#include "text/golden_file.h"

namespace dormouse::text {
namespace {

using Ids = std::vector<TokenId>;

struct Golden {
  TokenizerData data;
  std::vector<TokenizerRow> rows;
};

const Golden& golden() {
  static const Golden kGolden = [] {
    Golden read;
    read.data.model = "gpt2";
    for (const std::string& line : golden_lines("tokenizer_small.txt")) {
      const auto [kind, rest] = cut(line, ' ');
      if (kind == "token") {
        read.data.types.push_back(std::stoi(cut(rest, ' ').first));
        read.data.tokens.push_back(unescape(cut(rest, ' ').second));
      } else if (kind == "merge") {
        read.data.merges.push_back(rest);
      } else {
        read.rows.push_back(parse_tokenizer_row(rest));
      }
    }
    return read;
  }();
  return kGolden;
}

TokenizerData data_for(const std::string& pre) {
  TokenizerData data = golden().data;
  data.pre = pre;
  return data;
}

std::shared_ptr<const Tokenizer> make(const std::string& pre = "gpt-2") {
  return Tokenizer::create(data_for(pre)).value();
}

TokenId id_of(const std::string& token) {
  const auto& tokens = golden().data.tokens;
  const auto at = std::find(tokens.begin(), tokens.end(), token);
  EXPECT_NE(at, tokens.end()) << token;
  return static_cast<TokenId>(at - tokens.begin());
}

std::string error_of(TokenizerData data) {
  const auto made = Tokenizer::create(std::move(data));
  return made ? "" : made.error().message;
}

TEST(Tokenizer, GivesTheOraclesIdsForAllPreTokenizers) {
  std::map<std::string, std::shared_ptr<const Tokenizer>> tokenizers;
  ASSERT_GT(golden().rows.size(), 1000U);
  for (const TokenizerRow& row : golden().rows) {
    auto& tokenizer = tokenizers[row.scheme];
    if (!tokenizer)
      tokenizer = make(row.scheme);
    EXPECT_EQ(tokenizer->encode(row.text, true), row.ids) << row.scheme << ": " << row.text;
  }
  EXPECT_EQ(tokenizers.size(), 4U);
}

TEST(Tokenizer, DecodesWhatItHasEncoded) {
  const auto tokenizer = make();
  for (const TokenizerRow& row : golden().rows) {
    const bool normalized = row.scheme == "qwen2";
    EXPECT_TRUE(normalized || tokenizer->decode(row.ids, false) == row.text) << row.text;
  }
}

TEST(Tokenizer, RecognisesControlTokensOnlyWhenAsked) {
  const auto tokenizer = make();
  const TokenId end = id_of("<|im_end|>");
  EXPECT_EQ(tokenizer->encode("<|im_end|>", true), Ids{end});
  const Ids plain = tokenizer->encode("<|im_end|>");
  EXPECT_EQ(std::count(plain.begin(), plain.end(), end), 0);
  EXPECT_EQ(tokenizer->decode(plain, true), "<|im_end|>");
}

TEST(Tokenizer, AlwaysRecognisesUserDefinedTokensTheLongestFirst) {
  EXPECT_EQ(make()->encode("<tool><tool>x"), (Ids{id_of("<tool>"), id_of("<tool>x")}));
}

TEST(Tokenizer, TrustsOnlyTrustedPieces) {
  const auto tokenizer = make();
  const TokenId end = id_of("<|im_end|>");
  const auto count = [&](const std::vector<MarkedPiece>& pieces) {
    const Ids ids = tokenizer->encode(pieces);
    EXPECT_EQ(tokenizer->decode(ids, false), "a<|im_end|>b");
    return std::count(ids.begin(), ids.end(), end);
  };
  EXPECT_EQ(count({{"a<|im_end|>b", true}}), 1);
  EXPECT_EQ(count({{"a<|im_", true}, {"end|>b", true}}), 1);
  EXPECT_EQ(count({{"a", true}, {"<|im_end|>", false}, {"b", true}}), 0);
  EXPECT_EQ(count({{"a<|im_", true}, {"end|>", false}, {"b", true}}), 0);
  EXPECT_EQ(count({{"a<|im_", false}, {"end|>b", true}}), 0);
}

TEST(Tokenizer, EncodesPiecesAsOneText) {
  const auto tokenizer = make("llama-bpe");
  const std::vector<MarkedPiece> pieces{
      {"The en", true}, {"gine", false}, {"\n", true}, {"\n x", false}};
  EXPECT_EQ(tokenizer->encode(pieces), tokenizer->encode("The engine\n\n x"));
}

TEST(Tokenizer, ReadsIllFormedUtf8AsReplacementCharacters) {
  const auto tokenizer = make();
  EXPECT_EQ(tokenizer->encode("a\xFF\xE4\xBD z"), tokenizer->encode("a\uFFFD\uFFFD z"));
}

TEST(Tokenizer, EncodesALongRunInReasonableTime) {
  const std::string text(1 << 20, 'a');
  const Ids ids = make()->encode(text);
  EXPECT_EQ(make()->decode(ids, false), text);
}

TEST(Tokenizer, AddsBosAndEosToPromptsAsTheModelAsks) {
  TokenizerData data = data_for("gpt-2");
  data.bos = 1;
  data.eos = 2;
  data.add_bos = data.add_eos = true;
  const auto tokenizer = Tokenizer::create(data).value();
  Ids expected = tokenizer->encode("The");
  expected.insert(expected.begin(), 1);
  expected.push_back(2);
  EXPECT_EQ(tokenizer->encode_prompt("The"), expected);
  EXPECT_EQ(make()->encode_prompt("The"), make()->encode("The"));
}

TEST(Tokenizer, KnowsWhatEndsAGeneration) {
  TokenizerData data = data_for("gpt-2");
  data.eos = 65;
  data.eot = 66;
  const auto tokenizer = Tokenizer::create(data).value();
  for (const TokenId token : {65, 66, id_of("<|im_end|>"), id_of("<|endoftext|>")})
    EXPECT_TRUE(tokenizer->is_end_of_generation(token)) << token;
  for (const TokenId token : {64, id_of("<|im_start|>"), -1, 1 << 20})
    EXPECT_FALSE(tokenizer->is_end_of_generation(token)) << token;
  EXPECT_TRUE(tokenizer->is_control(id_of("<|im_start|>")));
  EXPECT_FALSE(tokenizer->is_control(id_of("<tool>")));
}

TEST(Tokenizer, SkipsControlTokensInTextWhenAsked) {
  const auto tokenizer = make();
  const Ids ids{id_of("<|im_start|>"), id_of("<tool>"), id_of("Zebra")};
  EXPECT_EQ(tokenizer->decode(ids, true), "<tool>Zebra");
  EXPECT_EQ(tokenizer->decode(ids, false), "<|im_start|><tool>Zebra");
}

TEST(Tokenizer, RefusesAVocabularyThatContradictsItself) {
  const auto broken = [](auto change) {
    TokenizerData data = data_for("gpt-2");
    change(data);
    return error_of(std::move(data));
  };
  using Data = TokenizerData;
  EXPECT_EQ(broken([](Data&) {}), "");
  EXPECT_NE(broken([](Data& d) { d.model = "llama"; }), "");
  EXPECT_NE(broken([](Data& d) { d.pre = "unheard-of"; }).find("'unheard-of'"), std::string::npos);
  EXPECT_NE(broken([](Data& d) { d.tokens.clear(); }), "");
  EXPECT_NE(broken([](Data& d) { d.types.pop_back(); }).find("token_type"), std::string::npos);
  EXPECT_NE(broken([](Data& d) { d.types[3] = 7; }).find("token 3"), std::string::npos);
  EXPECT_NE(broken([](Data& d) { d.types[3] = 6; }).find("<0xHH>"), std::string::npos);
  EXPECT_NE(broken([](Data& d) { d.tokens[9] = d.tokens[8]; }).find("8 and 9"), std::string::npos);
  EXPECT_NE(broken([](Data& d) { d.tokens[9] = ""; }).find("empty"), std::string::npos);
  EXPECT_NE(broken([](Data& d) { d.tokens[300] = "日"; }).find("alphabet"), std::string::npos);
  EXPECT_NE(broken([](Data& d) { d.merges[0] = "日 本"; }).find("merge 0"), std::string::npos);
  EXPECT_NE(broken([](Data& d) { d.merges[0] = "ab"; }).find("merge 0"), std::string::npos);
  EXPECT_NE(broken([](Data& d) { d.merges[1] = d.merges[0]; }).find("twice"), std::string::npos);
  EXPECT_NE(broken([](Data& d) { d.eos = 1 << 20; }).find("eos_token_id"), std::string::npos);
  EXPECT_NE(broken([](Data& d) { d.padding = -1; }).find("padding"), std::string::npos);
  EXPECT_NE(broken([](Data& d) { d.add_bos = true; }).find("BOS"), std::string::npos);
}

TEST(Tokenizer, ReadsByteTokensExactly) {
  TokenizerData data = data_for("gpt-2");
  data.tokens.push_back("<0x0A>");
  data.types.push_back(6);
  const auto tokenizer = Tokenizer::create(data).value();
  EXPECT_EQ(tokenizer->piece_bytes(static_cast<TokenId>(data.tokens.size() - 1)), "\n");
  for (const char* wrong : {"<0x-1>", "<0x0a>", "<0x0A", "<0xAAA>"}) {
    data.tokens.back() = wrong;
    EXPECT_NE(error_of(data), "") << wrong;
  }
}

TEST(Detokenizer, HoldsBackIncompleteCharacters) {
  const auto tokenizer = make();
  Detokenizer detokenizer(tokenizer, true);
  const auto push_byte = [&](unsigned char byte) {
    for (TokenId id = 0; id < 256; ++id) {
      if (tokenizer->piece_bytes(id) == std::string(1, static_cast<char>(byte)))
        return detokenizer.push(id);
    }
    return std::string("no such byte");
  };
  EXPECT_EQ(push_byte(0xF0), "");
  EXPECT_EQ(push_byte(0x9F), "");
  EXPECT_EQ(push_byte(0x99), "");
  EXPECT_EQ(push_byte(0x82), "🙂");
  EXPECT_EQ(push_byte(0xC3), "");
  EXPECT_EQ(push_byte('x'), "\uFFFDx");
  EXPECT_EQ(push_byte(0xFF), "\uFFFD");
  EXPECT_EQ(push_byte(0xE4), "");
  EXPECT_EQ(detokenizer.push(id_of("<|im_end|>")), "");
  EXPECT_EQ(detokenizer.flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(Detokenizer, GivesTheTextOfDecode) {
  const auto tokenizer = make();
  Ids ids;
  for (TokenId id = 0; id < static_cast<TokenId>(tokenizer->vocab_size()); ++id)
    ids.push_back((id * 7919) % static_cast<TokenId>(tokenizer->vocab_size()));
  for (const bool skip : {false, true}) {
    Detokenizer detokenizer(tokenizer, skip);
    std::string text;
    for (const TokenId id : ids)
      text += detokenizer.push(id);
    EXPECT_EQ(text + detokenizer.flush(), tokenizer->decode(ids, skip));
  }
}

}  // namespace
}  // namespace dormouse::text

#include "text/tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "text/byte_alphabet.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace dormouse::text {
namespace {

enum TokenType { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

constexpr std::size_t kMaxTokens = 1U << 24;

tl::unexpected<Error> invalid(std::string key, std::string message) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", key, message), key);
}

bool ends_generation_by_name(std::string_view token) {
  static constexpr std::array<std::string_view, 4> kNames{"<|im_end|>", "<|eot_id|>",
                                                          "<end_of_turn>", "<|endoftext|>"};
  return std::find(kNames.begin(), kNames.end(), token) != kNames.end();
}

Result<std::string> bytes_of_token(const std::string& token, int type) {
  if (type == kNormal) {
    if (auto bytes = bytes_of_printable(token))
      return *std::move(bytes);
    return fail(ErrorCode::kInvalidArgument, "has a character outside the byte alphabet");
  }
  if (type == kByte) {
    if (const auto byte = byte_of_byte_token(token))
      return std::string(1, static_cast<char>(*byte));
    return fail(ErrorCode::kInvalidArgument, "is a byte token but not of the form <0xHH>");
  }
  return token;
}

}  // namespace

// The words of one call and their tokens: text repeats itself. Bounded, so that hostile text gains
// nothing.
class WordCache {
 public:
  const std::vector<TokenId>* find(const std::string& word) const {
    const auto entry = words_.find(word);
    return entry == words_.end() ? nullptr : &entry->second;
  }
  void add(std::string word, std::span<const TokenId> tokens) {
    if (words_.size() < kMaxWords && word.size() <= kMaxWordBytes)
      words_.try_emplace(std::move(word), tokens.begin(), tokens.end());
  }

 private:
  static constexpr std::size_t kMaxWords = 8192;
  static constexpr std::size_t kMaxWordBytes = 64;
  std::unordered_map<std::string, std::vector<TokenId>> words_;
};

Result<std::shared_ptr<const Tokenizer>> Tokenizer::create(TokenizerData data) {
  if (data.model != "gpt2") {
    return fail(ErrorCode::kUnsupported,
                fmt::format("tokenizer model '{}' is not supported; known is: gpt2", data.model),
                "tokenizer.ggml.model");
  }
  std::shared_ptr<Tokenizer> tokenizer(new Tokenizer);
  DM_TRY_ASSIGN(tokenizer->scheme_, parse_pre_tokenizer(data.pre));
  DM_TRY(tokenizer->add_tokens(data));
  DM_TRY(tokenizer->add_merges(data));
  DM_TRY(tokenizer->add_roles(data));
  return tokenizer;
}

Status Tokenizer::add_tokens(const TokenizerData& data) {
  const std::string tokens_key = "tokenizer.ggml.tokens";
  if (data.tokens.empty() || data.tokens.size() > kMaxTokens)
    return invalid(tokens_key, fmt::format("{} tokens", data.tokens.size()));
  if (data.types.size() != data.tokens.size()) {
    return invalid("tokenizer.ggml.token_type",
                   fmt::format("{} types for {} tokens", data.types.size(), data.tokens.size()));
  }
  std::unordered_map<std::string_view, std::size_t> seen;
  for (std::size_t i = 0; i < data.tokens.size(); ++i) {
    const std::string& token = data.tokens[i];
    const int type = data.types[i];
    const auto id = static_cast<TokenId>(i);
    if (type < kNormal || type > kByte) {
      return invalid("tokenizer.ggml.token_type",
                     fmt::format("token {} has the unknown type {}", i, type));
    }
    if (token.empty())
      return invalid(tokens_key, fmt::format("token {} is empty", i));
    if (const auto [first, is_new] = seen.try_emplace(token, i); !is_new)
      return invalid(tokens_key, fmt::format("tokens {} and {} are the same", first->second, i));
    auto bytes = bytes_of_token(token, type);
    if (!bytes)
      return invalid(tokens_key, fmt::format("token {} {}", i, bytes.error().message));
    if (type == kNormal) {
      normal_.emplace(*bytes, id);
      if (bytes->size() == 1)
        bpe_.set_byte(static_cast<std::uint8_t>(bytes->front()), id);
    }
    const bool control = type == kControl || type == kUnknown;
    if (control || type == kUserDefined)
      special_.add(token, id, control);
    longest_piece_ = std::max(longest_piece_, bytes->size());
    pieces_.push_back(*std::move(bytes));
    flags_.push_back({control, ends_generation_by_name(token)});
  }
  return {};
}

Status Tokenizer::add_merges(const TokenizerData& data) {
  const std::string key = "tokenizer.ggml.merges";
  const auto id_of = [&](std::string_view printable) {
    const auto bytes = bytes_of_printable(printable);
    const auto found = bytes ? normal_.find(*bytes) : normal_.end();
    return found == normal_.end() ? Bpe::kNoToken : found->second;
  };
  for (std::size_t i = 0; i < data.merges.size(); ++i) {
    const std::string& merge = data.merges[i];
    const std::size_t space = merge.find(' ');
    if (space == std::string::npos || space != merge.rfind(' '))
      return invalid(key, fmt::format("merge {} is not two tokens with a space between", i));
    const std::string left = merge.substr(0, space);
    const std::string right = merge.substr(space + 1);
    const TokenId left_id = id_of(left);
    const TokenId right_id = id_of(right);
    const TokenId merged_id = id_of(left + right);
    if (left_id == Bpe::kNoToken || right_id == Bpe::kNoToken || merged_id == Bpe::kNoToken)
      return invalid(key, fmt::format("merge {} names a token that does not exist", i));
    if (!bpe_.add_merge(left_id, right_id, static_cast<std::uint32_t>(i), merged_id))
      return invalid(key, fmt::format("merge {} is there twice", i));
  }
  return {};
}

Status Tokenizer::add_roles(const TokenizerData& data) {
  const std::array<std::pair<std::string_view, std::optional<TokenId>>, 5> roles{{
      {"bos", data.bos},
      {"eos", data.eos},
      {"eot", data.eot},
      {"unknown", data.unknown},
      {"padding", data.padding},
  }};
  for (const auto& [name, token] : roles) {
    if (token && !contains(*token)) {
      return invalid(fmt::format("tokenizer.ggml.{}_token_id", name),
                     fmt::format("{} is outside the vocabulary of {}", *token, pieces_.size()));
    }
  }
  for (const auto& end : {data.eos, data.eot}) {
    if (end)
      flags_[static_cast<std::size_t>(*end)].end_of_generation = true;
  }
  if (data.add_bos && !data.bos)
    return invalid("tokenizer.ggml.add_bos_token", "there is no BOS token to add");
  if (data.add_eos && !data.eos)
    return invalid("tokenizer.ggml.add_eos_token", "there is no EOS token to add");
  bos_ = data.bos;
  eos_ = data.eos;
  add_bos_ = data.add_bos;
  add_eos_ = data.add_eos;
  return {};
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool parse_special) const {
  const MarkedPiece piece{std::string(text), parse_special};
  return encode(std::span(&piece, 1));
}

std::vector<TokenId> Tokenizer::encode(std::span<const MarkedPiece> pieces) const {
  std::string text;
  std::vector<std::size_t> trusted_until;  // for each byte: the end of its trusted run, or 0
  for (const MarkedPiece& piece : pieces) {
    text += to_valid_utf8(piece.text);
    trusted_until.resize(text.size(), piece.trusted ? text.size() : 0);
  }
  for (std::size_t i = text.size(); i-- > 1;) {
    if (trusted_until[i - 1] != 0)
      trusted_until[i - 1] = std::max(i, trusted_until[i]);
  }
  std::vector<TokenId> tokens;
  WordCache cache;
  std::size_t plain = 0;  // where the text without special tokens begins
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t trusted = std::max(trusted_until[at], at) - at;
    const auto match = special_.match(std::string_view(text).substr(at), trusted);
    if (!match) {
      ++at;
      continue;
    }
    encode_words(std::string_view(text).substr(plain, at - plain), cache, tokens);
    tokens.push_back(match->token);
    at += match->length;
    plain = at;
  }
  encode_words(std::string_view(text).substr(plain), cache, tokens);
  return tokens;
}

std::vector<TokenId> Tokenizer::encode_prompt(std::string_view text, bool parse_special) const {
  std::vector<TokenId> tokens = encode(text, parse_special);
  if (add_bos_)
    tokens.insert(tokens.begin(), *bos_);
  if (add_eos_)
    tokens.push_back(*eos_);
  return tokens;
}

void Tokenizer::encode_words(std::string_view text, WordCache& cache,
                             std::vector<TokenId>& out) const {
  const std::string normal = normalizes_to_nfc(scheme_) ? to_nfc(text) : std::string();
  const bool whole_words = ignores_merges_of_whole_words(scheme_);
  split_words(scheme_, normalizes_to_nfc(scheme_) ? normal : text, [&](std::string_view part) {
    std::string word(part);
    if (const auto* known = cache.find(word)) {
      out.insert(out.end(), known->begin(), known->end());
      return;
    }
    const std::size_t start = out.size();
    if (const auto whole = normal_.find(word); whole_words && whole != normal_.end())
      out.push_back(whole->second);
    else
      bpe_.encode(word, out);
    cache.add(std::move(word), std::span(out).subspan(start));
  });
}

std::string Tokenizer::decode(std::span<const TokenId> tokens, bool skip_special) const {
  std::string bytes;
  for (const TokenId token : tokens) {
    if (!(skip_special && is_control(token)))
      bytes += piece_bytes(token);
  }
  return to_valid_utf8(bytes);
}

const std::string& Tokenizer::piece_bytes(TokenId token) const {
  DM_CHECK(contains(token), "a token outside the vocabulary");
  return pieces_[static_cast<std::size_t>(token)];
}

bool Tokenizer::is_end_of_generation(TokenId token) const {
  return contains(token) && flags_[static_cast<std::size_t>(token)].end_of_generation;
}

bool Tokenizer::is_control(TokenId token) const {
  return contains(token) && flags_[static_cast<std::size_t>(token)].control;
}

}  // namespace dormouse::text

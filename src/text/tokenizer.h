// Text to token ids and back: byte-level BPE, with the ids that Hugging Face's tokenizers give.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dormouse/request.h"
#include "dormouse/result.h"
#include "text/bpe.h"
#include "text/marked_text.h"
#include "text/pre_tokenizer.h"
#include "text/special_tokens.h"

namespace dormouse::text {

class WordCache;

// What a model file says about its vocabulary. A token's id is its index.
struct TokenizerData {
  std::string model;                // "gpt2": byte-level BPE
  std::string pre;                  // the pre-tokenizer's name
  std::vector<std::string> tokens;  // normal ones in GPT-2's printable byte alphabet
  std::vector<int> types;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
  std::vector<std::string> merges;  // "left right", first is merged first
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::optional<TokenId> eot;
  std::optional<TokenId> unknown;
  std::optional<TokenId> padding;
  bool add_bos = false;
  bool add_eos = false;
};

// Owns:    the vocabulary.
// Threads: any; immutable.
// Text:    ill-formed UTF-8 in the input reads as U+FFFD, one for each maximal ill-formed part.
//          Bytes that the vocabulary has no token for are dropped.
class Tokenizer {
 public:
  // Errors: kUnsupported for a model or pre-tokenizer that is not known; kInvalidArgument, with the
  // metadata key in `param`, for a vocabulary that contradicts itself.
  static Result<std::shared_ptr<const Tokenizer>> create(TokenizerData data);

  // User-defined tokens are always recognised, control tokens only with `parse_special`. Adds no
  // BOS or EOS.
  std::vector<TokenId> encode(std::string_view text, bool parse_special = false) const;
  // The same for the text of all pieces together, control tokens recognised in trusted text only.
  std::vector<TokenId> encode(std::span<const MarkedPiece> pieces) const;
  // A prompt without a chat template: encode, with the BOS and EOS that the model asks for.
  std::vector<TokenId> encode_prompt(std::string_view text, bool parse_special = false) const;

  // Valid UTF-8; ill-formed parts become U+FFFD. `skip_special` leaves control tokens out.
  std::string decode(std::span<const TokenId> tokens, bool skip_special) const;

  // The bytes that a token of the vocabulary stands for, not always whole characters.
  const std::string& piece_bytes(TokenId token) const;

  std::size_t vocab_size() const { return pieces_.size(); }
  std::size_t longest_piece() const { return longest_piece_; }  // bytes of the longest token
  bool contains(TokenId token) const {
    return token >= 0 && static_cast<std::size_t>(token) < pieces_.size();
  }
  std::optional<TokenId> bos() const { return bos_; }
  std::optional<TokenId> eos() const { return eos_; }
  // EOS, end of turn, and the tokens that chat models end a reply with. False for unknown ids.
  bool is_end_of_generation(TokenId token) const;
  // Control and unknown tokens: they carry no text of the reply. False for unknown ids.
  bool is_control(TokenId token) const;

 private:
  struct Flags {
    bool control = false;
    bool end_of_generation = false;
  };

  Tokenizer() = default;
  Status add_tokens(const TokenizerData& data);
  Status add_merges(const TokenizerData& data);
  Status add_roles(const TokenizerData& data);
  void encode_words(std::string_view text, WordCache& cache, std::vector<TokenId>& out) const;

  PreTokenizer scheme_ = PreTokenizer::kGpt2;
  std::vector<std::string> pieces_;                  // by id
  std::vector<Flags> flags_;                         // by id
  std::unordered_map<std::string, TokenId> normal_;  // by bytes: the tokens that merging can make
  Bpe bpe_;
  SpecialTokens special_;
  std::optional<TokenId> bos_;
  std::optional<TokenId> eos_;
  std::size_t longest_piece_ = 1;
  bool add_bos_ = false;
  bool add_eos_ = false;
};

}  // namespace dormouse::text

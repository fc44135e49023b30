// Byte-pair encoding of one word.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dormouse/request.h"

namespace dormouse::text {

// Merges neighbours, lowest rank first and leftmost among equals, until no merge applies:
// O(n log n) in the length of the word.
//
// Threads: any, once filled.
class Bpe {
 public:
  static constexpr TokenId kNoToken = -1;

  Bpe() { byte_tokens_.fill(kNoToken); }

  void set_byte(std::uint8_t byte, TokenId token) { byte_tokens_[byte] = token; }
  // False if this pair has a rank already.
  bool add_merge(TokenId left, TokenId right, std::uint32_t rank, TokenId merged);

  // Appends the word's tokens. Bytes without a token are dropped, as Hugging Face does.
  void encode(std::string_view word, std::vector<TokenId>& out) const;

 private:
  struct Merge {
    std::uint32_t rank;
    TokenId merged;
  };
  const Merge* find(TokenId left, TokenId right) const;

  std::array<TokenId, 256> byte_tokens_;
  std::unordered_map<std::uint64_t, Merge> merges_;  // by both ids
};

}  // namespace dormouse::text

#include "text/bpe.h"

#include <queue>
#include <tuple>

namespace dormouse::text {
namespace {

std::uint64_t key_of(TokenId left, TokenId right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
         static_cast<std::uint32_t>(right);
}

// A token of the word under way, linked to its neighbours. A merged-away symbol has no token.
struct Symbol {
  TokenId token;
  std::int64_t previous;
  std::int64_t next;
};

struct Candidate {
  std::uint32_t rank;
  std::int64_t left;
  TokenId left_token;  // both as they were: a candidate whose symbols have changed is stale
  TokenId right_token;
  TokenId merged;

  bool operator>(const Candidate& other) const {
    return std::tie(rank, left) > std::tie(other.rank, other.left);
  }
};

}  // namespace

bool Bpe::add_merge(TokenId left, TokenId right, std::uint32_t rank, TokenId merged) {
  return merges_.try_emplace(key_of(left, right), Merge{rank, merged}).second;
}

const Bpe::Merge* Bpe::find(TokenId left, TokenId right) const {
  const auto merge = merges_.find(key_of(left, right));
  return merge == merges_.end() ? nullptr : &merge->second;
}

void Bpe::encode(std::string_view word, std::vector<TokenId>& out) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (const char c : word) {
    const auto at = static_cast<std::int64_t>(symbols.size());
    if (const TokenId token = byte_tokens_[static_cast<std::uint8_t>(c)]; token != kNoToken)
      symbols.push_back({token, at - 1, at + 1});
  }
  const auto size = static_cast<std::int64_t>(symbols.size());
  const auto at = [&](std::int64_t index) -> Symbol& {
    return symbols[static_cast<std::size_t>(index)];
  };

  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](std::int64_t left, std::int64_t right) {
    if (left < 0 || right >= size)
      return;
    const TokenId left_token = at(left).token;
    const TokenId right_token = at(right).token;
    if (const Merge* merge = find(left_token, right_token))
      candidates.push({merge->rank, left, left_token, right_token, merge->merged});
  };
  for (std::int64_t i = 0; i + 1 < size; ++i)
    consider(i, i + 1);

  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Symbol& left = at(best.left);
    if (left.token != best.left_token || left.next >= size ||
        at(left.next).token != best.right_token)
      continue;
    at(left.next).token = kNoToken;
    left.token = best.merged;
    left.next = at(left.next).next;
    if (left.next < size)
      at(left.next).previous = best.left;
    consider(left.previous, best.left);
    consider(best.left, left.next);
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.token != kNoToken)
      out.push_back(symbol.token);
  }
}

}  // namespace dormouse::text

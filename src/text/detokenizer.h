// Tokens to text while they are generated, one sequence at a time.
#pragma once

#include <memory>
#include <string>

#include "text/tokenizer.h"

namespace dormouse::text {

// A token may end inside a character. Whatever is returned is whole characters of valid UTF-8; all
// of it together is Tokenizer::decode of all tokens.
//
// Owns:    at most three bytes held back, and a share of the tokenizer.
// Threads: one at a time.
class Detokenizer {
 public:
  Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special)
      : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

  // The text that is certain now. `token` must be in the vocabulary.
  std::string push(TokenId token);
  // At the end of the sequence: what was held back, as U+FFFD. Ready for a new sequence afterwards.
  std::string flush();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  std::string held_;  // the beginning of a character
};

}  // namespace dormouse::text

// Cuts text into the words that byte-pair encoding works on.
//
// Each scheme is the regular expression that its models were trained with, written as a scanner:
// one pass, no backtracking beyond a run of white space.
#pragma once

#include <functional>
#include <string_view>

#include "dormouse/result.h"

namespace dormouse::text {

enum class PreTokenizer {
  kGpt2,    // contractions | ?letters | ?numbers | ?others | spaces
  kSmollm,  // every number alone, then as kGpt2 on what is between
  kLlama3,  // contractions in any case | one other + letters | 1-3 numbers | ?others + newlines
            // | spaces
  kQwen2,   // as kLlama3 with every number alone; the text is normalised to NFC first
};

// By the name that a GGUF file gives it in tokenizer.ggml.pre. Errors: kUnsupported.
Result<PreTokenizer> parse_pre_tokenizer(std::string_view name);

bool normalizes_to_nfc(PreTokenizer scheme);
// A word that is a token as a whole is that token, whatever the merges say.
bool ignores_merges_of_whole_words(PreTokenizer scheme);

// Calls `word` with each word in order; together they are the whole text, which must be valid
// UTF-8.
void split_words(PreTokenizer scheme, std::string_view valid_utf8,
                 const std::function<void(std::string_view)>& word);

}  // namespace dormouse::text

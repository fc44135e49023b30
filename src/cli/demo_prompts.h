// The fixed prompts of the demonstration, from shorter than a KV block to over 512 tokens.
#pragma once

#include <vector>

#include "dormouse/request.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace dormouse::cli {

inline constexpr std::size_t kShortestPrompt = 5;   // tokens
inline constexpr std::size_t kLongestPrompt = 530;  // tokens; a chat template adds its own

// The same prompts every time. Lengths grow by a constant factor; every fifth prompt is a
// conversation in the model's chat template.
// Errors: those of the template.
Result<std::vector<std::vector<TokenId>>> make_prompts(const text::Tokenizer& tokenizer,
                                                       const text::ChatTemplate& chat_template,
                                                       std::size_t count);

}  // namespace dormouse::cli

// From what a user sent to the token ids of a prompt.
#pragma once

#include <vector>

#include "dormouse/engine.h"
#include "server/openai_request.h"

namespace dormouse::server {

// The prompts of a request, in its order. Errors: kInvalidArgument for a prompt that is empty, that
// has unknown token ids or that leaves no room in the context; kUnavailable before the model is
// loaded.
Result<std::vector<std::vector<TokenId>>> tokenize_prompts(const Engine& engine,
                                                           const OpenAiRequest& request);

// One text, as /tokenize counts it: special tokens written in it are recognised.
Result<std::vector<TokenId>> tokenize_text(const Engine& engine, const std::string& text,
                                           bool add_special_tokens);
Result<std::vector<TokenId>> tokenize_chat(const Engine& engine,
                                           const std::vector<ChatTurn>& messages,
                                           bool add_generation_prompt);

}  // namespace dormouse::server

// Greedy answers to a set of prompts, and whether two of them are the same bit for bit.
#pragma once

#include <cstdint>
#include <vector>

#include "dormouse/engine.h"

namespace dormouse::cli {

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;  // of the tokens

  // Equal tokens, and log probabilities of equal bits.
  bool identical_to(const Answer& other) const;
};

std::size_t count_identical(const std::vector<Answer>& answers, const std::vector<Answer>& first);

// A greedy request for exactly `tokens` tokens with their log probabilities.
Request greedy_request(std::vector<TokenId> prompt, std::uint32_t tokens);

// Asks for all prompts at once and returns when all are answered.
// Errors: the first refusal, or why the first request failed.
Result<std::vector<Answer>> ask(Engine& engine, const std::vector<std::vector<TokenId>>& prompts,
                                std::uint32_t tokens);

}  // namespace dormouse::cli

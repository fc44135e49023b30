// Chooses the next token of one sequence from its logits, on the CPU.
//
// A choice depends on its input alone: the random number is that of (seed, sample_index), so
// neighbours in the batch, preemption and restarts change nothing, and sums run in a fixed order.
//
// Owns:    scratch memory for one vocabulary.
// Threads: one at a time; each thread has its own.
// Order:   that of vLLM: logit_bias, end tokens forbidden before min_tokens, repetition, frequency
//          and presence penalty; then the largest logit (temperature below 1e-5), or temperature,
//          min_p, top_k, top_p and a draw. Of equal logits the lower id counts as the larger.
// Errors:  none. NaN counts as minus infinity; ids outside the vocabulary are ignored.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dormouse/request.h"

namespace dormouse {

struct SampleInput {
  std::span<const float> logits;             // one for each token of the vocabulary, at least one
  std::span<const TokenId> history = {};     // prompt and output so far; needed by penalties alone
  std::uint32_t prompt_length = 0;           // how many of `history` are the prompt
  std::uint32_t sample_index = 0;            // tokens generated before this one
  std::span<const TokenId> end_tokens = {};  // these and stop_token_ids wait for min_tokens
};

class Sampler {
 public:
  // Log-probabilities are those of the logits as they came in, before any parameter acts on them.
  GeneratedToken sample(const SampleInput& input, const SamplingParams& params);

 private:
  struct Candidate {
    double weight = 0;  // probability, not normalised
    float logit = 0;
    TokenId token = 0;
  };
  static bool more_likely(const Candidate& a, const Candidate& b);

  std::span<const float> adjust(const SampleInput& input, const SamplingParams& params);
  void apply_penalties(const SampleInput& input, const SamplingParams& params);
  TokenId draw(std::span<const float> logits, const SamplingParams& params,
               std::uint32_t sample_index);
  // Puts the candidates that rank from `from` to before `to` into place; those before are in place.
  void sort_next(std::size_t from, std::size_t to);
  void keep_top_p(double top_p);
  void add_logprobs(std::span<const float> logits, std::int32_t count, GeneratedToken& result);

  std::vector<float> adjusted_;
  std::vector<std::uint32_t> counts_;  // of each token in the output; all zero between calls
  std::vector<Candidate> candidates_;
};

// Whether `history` matters to the sampler: callers need not keep it otherwise.
bool needs_history(const SamplingParams& params);

}  // namespace dormouse

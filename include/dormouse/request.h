// What a user asks of the engine, and what comes back: token ids in, token ids out.
//
// Plain values. Text is the caller's side: Engine::encode, encode_chat and decode help with it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dormouse/result.h"

namespace dormouse {

using TokenId = std::int32_t;
using RequestId = std::uint64_t;  // unique within one engine, never reused
using BlockId = std::uint32_t;    // of the KV cache

// Names and defaults are those of the OpenAI API and of vLLM's SamplingParams.
struct SamplingParams {
  float temperature = 1.0F;  // 0 is greedy
  float top_p = 1.0F;
  std::int32_t top_k = 0;  // 0: no limit
  float min_p = 0.0F;
  std::uint64_t seed = 0;  // used only when `seeded`; else the engine draws one for the request
  bool seeded = false;
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  float repetition_penalty = 1.0F;
  std::map<TokenId, float> logit_bias;

  std::uint32_t max_tokens = 16;
  std::uint32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<TokenId> stop_token_ids;
  std::int32_t logprobs = -1;  // -1: none; k: the sampled token's and the k most likely
};

// Checks every bound (finite, in range); the error names the field in `param`.
Status validate(const SamplingParams& params);

struct Request {
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  std::string cache_salt;  // blocks are shared only between requests of one salt
  std::int32_t priority = 0;
  std::string kv_transfer_params;  // JSON object for the KV connector; empty: none
};

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
};

struct GeneratedToken {
  TokenId token = 0;
  float logprob = 0;                   // valid if logprobs were asked for
  std::vector<TokenLogprob> top = {};  // most likely first
};

enum class FinishReason { kStop, kLength, kAbort, kError };
std::string_view to_string(FinishReason reason);

// Where a request's time went, seconds.
struct RequestTimes {
  double queued = 0;   // until it was first computed
  double prefill = 0;  // from there to its first token
  double decode = 0;   // from there to its end
};

// One event of a request. Every accepted request gets any number of tokens and then exactly one
// event with `finished`, after which nothing more comes.
struct RequestOutput {
  RequestId id = 0;
  std::vector<GeneratedToken> tokens;
  std::optional<FinishReason> finished;
  std::optional<TokenId> stop_token;  // the token that ended it, if one did
  Error error = {};                   // set with FinishReason::kError
  std::uint32_t prompt_tokens = 0;    // with `finished`
  std::uint32_t cached_tokens = 0;    // prompt tokens found in the prefix cache, or loaded
  std::uint32_t preemptions = 0;
  RequestTimes times = {};         // with `finished`
  std::string kv_transfer_params;  // with `finished`: JSON object for the next engine; empty: none
};

// Called on the engine's thread. It must not block, and of the engine it may call `abort` alone.
using OutputSink = std::function<void(RequestOutput)>;

}  // namespace dormouse

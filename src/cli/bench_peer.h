// The same work given to llama.cpp's llama-server over HTTP on loopback.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/options.h"
#include "dormouse/request.h"

namespace dormouse::cli {

inline constexpr std::uint32_t kSequences = 8;
inline constexpr std::size_t kShortPrompt = 16;  // tokens
inline constexpr std::size_t kLongPrompt = 512;
inline constexpr std::uint32_t kAnswerTokens = 128;

// What both engines are asked, token for token.
struct Workload {
  std::uint32_t threads = 1;
  std::size_t vocab_size = 0;

  std::vector<TokenId> prompt(std::size_t length, std::uint32_t number) const;
};

// Tokens per second, one value for each round.
struct ServeFigures {
  std::string name;
  std::string features;        // what it says of the processor
  std::vector<double> decode;  // one sequence, from the first token to the last
  std::vector<double> eight;   // all tokens of eight sequences over the wall clock
  std::vector<double> prefill;
  double first_token_ms = 0;  // from starting the process, or the engine within it
};

// Starts the server, measures, and ends it. Decode and prefill are the server's own timings, so
// that HTTP does not count against it.
// Errors: kUnavailable if it does not come up within a minute; what it answers.
Result<ServeFigures> measure_peer(const BenchOptions& options, const Workload& workload);

}  // namespace dormouse::cli

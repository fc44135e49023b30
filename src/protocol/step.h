// What the scheduler tells the ranks to run in one step, and what they answer. Plain data.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dormouse/kv_connector.h"
#include "dormouse/request.h"

namespace dormouse {

// A run of consecutive tokens of one sequence. All of its keys and values are written by this step,
// and everything before `first_position` is already in the cache.
struct ScheduledSequence {
  RequestId id = 0;
  std::vector<TokenId> tokens;       // at least one
  std::uint32_t first_position = 0;  // position of tokens[0]
  std::vector<BlockId> block_table;  // covers first_position + tokens.size() positions
  bool samples = false;              // the last token's logits give the next token
  std::uint32_t sample_index = 0;  // how many tokens were generated before: keys the random stream
  std::shared_ptr<const SamplingParams> sampling;  // set when `samples`
  std::vector<TokenId> history;     // prompt and output so far; only when penalties need it
  std::uint32_t prompt_length = 0;  // how many of `history` are the prompt
};

struct StepPlan {
  std::uint64_t step = 0;
  std::vector<ScheduledSequence> sequences;
  std::uint32_t total_tokens = 0;
  std::string connector_meta;    // bytes of the connector's scheduler half
  RequestIds finished;           // requests that ended since the last step
  bool polls_connector = false;  // run although nothing is computed
};

// One entry for each sequence with `samples`, in the plan's order.
struct StepResult {
  std::uint64_t step = 0;
  struct Sampled {
    RequestId id = 0;
    GeneratedToken token;
  };
  std::vector<Sampled> sampled;
  std::vector<KvConnectorOutput> connector;  // of each rank; empty without a connector
};

}  // namespace dormouse

#include "scheduler/sequence.h"

#include <algorithm>

namespace dormouse {

namespace {

bool has_penalties(const SamplingParams& sampling) {
  return sampling.repetition_penalty != 1.0F || sampling.presence_penalty != 0.0F ||
         sampling.frequency_penalty != 0.0F;
}

}  // namespace

ScheduledSequence schedule_next(const Sequence& sequence, std::uint32_t count,
                                std::uint32_t block_size) {
  const auto first = sequence.tokens.begin() + sequence.computed;
  const std::uint32_t end = sequence.computed + count;
  const std::uint32_t num_blocks = (end + block_size - 1) / block_size;

  ScheduledSequence scheduled;
  scheduled.id = sequence.id;
  scheduled.tokens.assign(first, first + count);
  scheduled.first_position = sequence.computed;
  scheduled.block_table.assign(sequence.blocks.begin(), sequence.blocks.begin() + num_blocks);
  scheduled.samples = end == sequence.length();
  scheduled.sample_index = sequence.generated();
  scheduled.prompt_length = sequence.prompt_length;
  if (!scheduled.samples)
    return scheduled;
  scheduled.sampling = sequence.sampling;
  if (has_penalties(*sequence.sampling))
    scheduled.history = sequence.tokens;
  return scheduled;
}

KvRequest kv_request(const Sequence& sequence, std::optional<FinishReason> finished) {
  return {.id = sequence.id,
          .tokens = sequence.tokens,
          .prompt_length = sequence.prompt_length,
          .num_computed = sequence.computed,
          .cache_salt = sequence.cache_salt,
          .kv_transfer_params = sequence.kv_transfer_params,
          .finished = finished};
}

std::optional<Ending> ending_of(const Sequence& sequence,
                                const std::vector<TokenId>& end_of_generation,
                                std::uint32_t max_model_len) {
  const SamplingParams& sampling = *sequence.sampling;
  const TokenId last = sequence.tokens.back();
  const bool stops =
      (!sampling.ignore_eos && std::ranges::binary_search(end_of_generation, last)) ||
      std::ranges::find(sampling.stop_token_ids, last) != sampling.stop_token_ids.end();
  if (stops && sequence.generated() >= sampling.min_tokens)
    return Ending{FinishReason::kStop, last};
  if (sequence.generated() >= sampling.max_tokens || sequence.length() >= max_model_len)
    return Ending{FinishReason::kLength, std::nullopt};
  return std::nullopt;
}

}  // namespace dormouse

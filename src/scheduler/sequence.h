// One request as the scheduler sees it: its tokens so far, and how many of them are in which
// blocks of the KV cache.
//
// Threads: one, the engine's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dormouse/request.h"
#include "kv_cache/block_hash.h"
#include "protocol/step.h"

namespace dormouse {

struct Sequence {
  RequestId id = 0;
  std::int32_t priority = 0;
  std::uint64_t arrival = 0;
  std::shared_ptr<const SamplingParams> sampling;

  std::vector<TokenId> tokens;  // prompt, then what was generated
  std::uint32_t prompt_length = 0;

  std::uint32_t computed = 0;   // tokens[0, computed) are in the cache
  std::vector<BlockId> blocks;  // held
  std::uint32_t published = 0;  // of `blocks`, from the first: those that the prefix cache has seen
  std::vector<BlockHash> hashes;  // hashes[0] is the root, hashes[i + 1] names full block i

  bool started = false;             // was admitted at least once
  bool in_flight = false;           // a submitted step refers to its blocks
  std::uint32_t cached_tokens = 0;  // of the prompt: found in the cache, or loaded

  std::string cache_salt;
  std::string kv_transfer_params;
  bool looked_up = false;        // the connector does not know yet what it has of it
  bool asked_connector = false;  // once in its life; what a load did not bring is computed
  std::uint32_t external = 0;    // tokens after `computed` that a load under way brings
  std::uint32_t loaded = 0;      // tokens that its load brought
  bool receiving = false;        // the connector writes to its blocks
  bool unconfirmed = false;      // the step in flight loads, and may turn out to have failed
  bool sending = false;          // the connector reads from its blocks
  std::uint32_t preemptions = 0;

  std::uint32_t length() const { return static_cast<std::uint32_t>(tokens.size()); }
  std::uint32_t generated() const { return length() - prompt_length; }
  std::uint32_t remaining() const { return length() - computed; }
  bool in_use() const { return in_flight || receiving || sending; }
};

// As connectors see it.
KvRequest kv_request(const Sequence& sequence, std::optional<FinishReason> finished = std::nullopt);

// Who goes first: lower `priority` values, as in vLLM, then earlier arrivals. Who goes last is
// preempted first.
struct ServedBefore {
  bool operator()(const Sequence* a, const Sequence* b) const {
    return a->priority != b->priority ? a->priority < b->priority : a->arrival < b->arrival;
  }
};

// What the sequence contributes to a step that computes its next `count` tokens.
ScheduledSequence schedule_next(const Sequence& sequence, std::uint32_t count,
                                std::uint32_t block_size);

struct Ending {
  FinishReason reason;
  std::optional<TokenId> stop_token;
};

// Whether the token appended last ends the sequence. `end_of_generation` is sorted.
std::optional<Ending> ending_of(const Sequence& sequence,
                                const std::vector<TokenId>& end_of_generation,
                                std::uint32_t max_model_len);

}  // namespace dormouse

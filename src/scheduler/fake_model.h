// For tests: a model whose next token depends on the whole history, read through a simulated
// KV cache.
//
// Each slot of the cache holds a digest of all tokens up to its position. A sequence continues from
// the digest that its block table leads to, so a wrong, stale, shared or missing block changes its
// output.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "protocol/step.h"

namespace dormouse::testing {

class FakeModel {
 public:
  FakeModel(std::uint32_t num_blocks, std::uint32_t block_size, std::uint32_t vocabulary)
      : block_size_(block_size),
        vocabulary_(vocabulary),
        slots_(std::size_t{num_blocks} * block_size, kPoison) {}

  StepResult run(const StepPlan& plan) {
    StepResult result;
    result.step = plan.step;
    std::map<BlockId, RequestId> writers;
    for (const ScheduledSequence& sequence : plan.sequences) {
      const std::uint64_t digest = write(sequence, writers);
      if (sequence.samples)
        result.sampled.push_back(
            {sequence.id, {next(digest, sequence.sampling->seed, sequence.sample_index)}});
    }
    for (const ScheduledSequence& sequence : plan.sequences)
      for (const BlockId block : sequence.block_table) {
        const auto writer = writers.find(block);
        const bool shared = writer != writers.end() && writer->second != sequence.id;
        EXPECT_FALSE(shared) << "block " << block << " is written while shared";
      }
    return result;
  }

  // What unmapping does to the cache.
  void poison() { slots_.assign(slots_.size(), kPoison); }

  // The same model without a cache.
  TokenId next_after(std::span<const TokenId> history, std::uint64_t seed,
                     std::uint32_t sample_index) const {
    std::uint64_t digest = kStart;
    for (const TokenId token : history)
      digest = mix(digest, static_cast<std::uint64_t>(token));
    return next(digest, seed, sample_index);
  }

 private:
  static constexpr std::uint64_t kPoison = 0;
  static constexpr std::uint64_t kStart = 1;

  static std::uint64_t mix(std::uint64_t digest, std::uint64_t value) {
    digest = (digest ^ (value + 0x9e3779b97f4a7c15ULL)) * 0xbf58476d1ce4e5b9ULL;
    return (digest ^ digest >> 29) | 1;  // never kPoison
  }

  TokenId next(std::uint64_t digest, std::uint64_t seed, std::uint32_t sample_index) const {
    return static_cast<TokenId>((mix(mix(digest, seed), sample_index) >> 20) % vocabulary_);
  }

  std::uint64_t& slot(const ScheduledSequence& sequence, std::uint32_t position) {
    const BlockId block = sequence.block_table.at(position / block_size_);
    return slots_.at(std::size_t{block} * block_size_ + position % block_size_);
  }

  std::uint64_t write(const ScheduledSequence& sequence, std::map<BlockId, RequestId>& writers) {
    std::uint32_t position = sequence.first_position;
    std::uint64_t digest = position == 0 ? kStart : slot(sequence, position - 1);
    EXPECT_NE(digest, kPoison) << "position " << position << " continues from nothing";
    for (const TokenId token : sequence.tokens) {
      digest = mix(digest, static_cast<std::uint64_t>(token));
      writers.emplace(sequence.block_table.at(position / block_size_), sequence.id);
      slot(sequence, position++) = digest;
    }
    return digest;
  }

  std::uint32_t block_size_;
  std::uint32_t vocabulary_;
  std::vector<std::uint64_t> slots_;
};

}  // namespace dormouse::testing

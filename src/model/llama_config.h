// The shape of a Llama model, as its file states it.
#pragma once

#include <cstdint>
#include <string>

#include "dormouse/result.h"
#include "format/gguf.h"
#include "kv_cache/layout.h"

namespace dormouse {

struct LlamaConfig {
  std::uint32_t num_layers = 0;
  std::uint32_t hidden_size = 0;
  std::uint32_t ffn_size = 0;
  std::uint32_t num_heads = 0;
  std::uint32_t num_kv_heads = 0;
  std::uint32_t head_dim = 0;
  std::uint32_t vocab_size = 0;
  std::uint32_t context_length = 0;  // positions it was trained for
  float rms_epsilon = 0;
  float rope_base = 0;
  bool tied_output = false;       // logits come from the embedding matrix
  bool has_rope_factors = false;  // frequencies are divided by rope_freqs.weight

  std::uint32_t query_size() const { return num_heads * head_dim; }
  std::uint32_t kv_size() const { return num_kv_heads * head_dim; }
  KvLayout kv_layout(std::uint32_t block_size) const {
    return {num_layers, num_kv_heads, head_dim, block_size};
  }

  bool operator==(const LlamaConfig&) const = default;

  // Every member, with its exact value: what keys and values depend on beside the weights.
  std::string text() const;

  // Reads and checks the metadata; the tensors themselves are checked by LlamaModel::plan.
  // Errors: kUnsupported for another architecture or a feature we lack; kDataLoss for missing or
  // impossible numbers. hidden_size, ffn_size and head_dim must be multiples of 32.
  static Result<LlamaConfig> read(const format::GgufFile& file);
};

}  // namespace dormouse

// Random Llama models small enough for tests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/gguf_writer.h"
#include "tensor/random_rows.h"

namespace dormouse {

struct TinyLlama {
  std::uint32_t layers = 2;
  std::uint32_t hidden = 96;
  std::uint32_t ffn = 160;
  std::uint32_t heads = 3;
  std::uint32_t kv_heads = 1;
  std::uint32_t head_dim = 32;
  std::uint32_t vocab = 150;
  format::GgmlType matrices = format::GgmlType::kF32;
  format::GgmlType embedding = format::GgmlType::kF32;
  bool tied = true;
  bool rope_factors = false;
  std::uint32_t seed = 1;

  struct Tensor {
    std::string name;
    format::GgmlType type;
    std::vector<std::uint64_t> dims;
  };

  std::vector<Tensor> tensors() const {
    const std::uint64_t queries = heads * head_dim;
    const std::uint64_t keys = kv_heads * head_dim;
    std::vector<Tensor> all = {{"token_embd.weight", embedding, {hidden, vocab}},
                               {"output_norm.weight", format::GgmlType::kF32, {hidden}}};
    if (!tied)
      all.push_back({"output.weight", matrices, {hidden, vocab}});
    if (rope_factors)
      all.push_back({"rope_freqs.weight", format::GgmlType::kF32, {head_dim / 2}});
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      const std::string prefix = "blk." + std::to_string(layer) + ".";
      all.push_back({prefix + "attn_norm.weight", format::GgmlType::kF32, {hidden}});
      all.push_back({prefix + "attn_q.weight", matrices, {hidden, queries}});
      all.push_back({prefix + "attn_k.weight", matrices, {hidden, keys}});
      all.push_back({prefix + "attn_v.weight", matrices, {hidden, keys}});
      all.push_back({prefix + "attn_output.weight", matrices, {queries, hidden}});
      all.push_back({prefix + "ffn_norm.weight", format::GgmlType::kF32, {hidden}});
      all.push_back({prefix + "ffn_gate.weight", matrices, {hidden, ffn}});
      all.push_back({prefix + "ffn_up.weight", matrices, {hidden, ffn}});
      all.push_back({prefix + "ffn_down.weight", matrices, {ffn, hidden}});
    }
    return all;
  }

  void add_metadata(format::GgufWriter& writer) const {
    writer.add("general.architecture", std::string_view("llama"));
    writer.add("llama.block_count", layers);
    writer.add("llama.context_length", std::uint32_t{256});
    writer.add("llama.embedding_length", hidden);
    writer.add("llama.feed_forward_length", ffn);
    writer.add("llama.attention.head_count", heads);
    writer.add("llama.attention.head_count_kv", kv_heads);
    writer.add("llama.attention.key_length", head_dim);
    writer.add("llama.attention.value_length", head_dim);
    writer.add("llama.rope.dimension_count", head_dim);
    writer.add("llama.attention.layer_norm_rms_epsilon", 1e-5F);
    writer.add("llama.rope.freq_base", 10000.0F);
  }

  // Vectors are all positive: norms keep the sign, and factors of frequencies must.
  std::vector<std::byte> data(const Tensor& tensor, std::uint32_t tensor_seed) const {
    const std::size_t rows = tensor.dims.size() == 1 ? 1 : tensor.dims[1];
    auto bytes = random_rows(tensor.type, rows, tensor.dims[0], tensor_seed, 0.1F);
    const bool vector = tensor.dims.size() == 1 && tensor.type == format::GgmlType::kF32;
    for (std::size_t at = 0; vector && at < bytes.size(); at += sizeof(float)) {
      float value;
      std::memcpy(&value, &bytes[at], sizeof value);
      value = 1.0F + (value < 0 ? -value : value);
      std::memcpy(&bytes[at], &value, sizeof value);
    }
    return bytes;
  }

  format::GgufWriter writer() const {
    format::GgufWriter out;
    add_metadata(out);
    std::uint32_t tensor_seed = seed * 1000;
    for (const Tensor& tensor : tensors())
      out.add_tensor(tensor.name, tensor.type, tensor.dims, data(tensor, tensor_seed++));
    return out;
  }
};

}  // namespace dormouse

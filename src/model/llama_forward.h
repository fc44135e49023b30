// One forward pass: all tokens of a step through all layers. Internal to model/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/llama.h"
#include "model/llama_tensors.h"

namespace dormouse {

// What of the scratch is for what. The first loops of a pass count it, the rest use it.
struct ForwardBuffers {
  // Lays the buffers out from `base`; with null, only counts `bytes`.
  ForwardBuffers(const LlamaConfig& config, std::size_t tokens, unsigned threads, std::byte* base);

  float* residual = nullptr;        // [tokens][hidden_size]
  float* queries = nullptr;         // [tokens][query_size]
  float* keys = nullptr;            // [tokens][kv_size]
  float* values = nullptr;          // [tokens][kv_size]
  float* cosines = nullptr;         // [tokens][head_dim / 2]
  float* sines = nullptr;           // [tokens][head_dim / 2]
  kernels::Activations normed;      // [tokens][hidden_size]
  kernels::Activations attended;    // [tokens][query_size]
  kernels::Activations gated;       // [tokens][ffn_size]
  float* thread_scratch = nullptr;  // [threads][thread_floats]
  std::size_t thread_floats = 0;
  std::size_t bytes = 0;
};

class ForwardPass {
 public:
  ForwardPass(const ModelPlan& plan, const std::byte* arena, const kernels::CpuKernels& kernels,
              const StepPlan& step, std::byte* kv_cache, const KvLayout& layout,
              const ForwardBuffers& buffers, unsigned threads);

  // Every thread of the team calls it.
  void run(Team& team, float* logits, LayerObserver* observer);

 private:
  struct TokenRow {
    const ScheduledSequence* sequence;
    std::uint32_t position;
    TokenId token;
  };
  struct AttentionTile {
    const ScheduledSequence* sequence;
    std::size_t first_row;  // of the step
    std::uint32_t first_position;
    std::size_t tokens;
  };
  struct Product {
    PackedMatrix weights;
    float* out;
    bool accumulate = false;
  };
  // A rectangle of a product: some rows of activations times some tiles.
  struct Split {
    std::size_t row_chunk;
    std::size_t row_chunks;
    std::size_t tile_chunk;
  };

  PackedMatrix matrix(std::size_t tensor) const;
  PackedMatrix matrix(std::size_t layer, LayerTensor tensor) const {
    return matrix(index_.layer(layer, tensor));
  }
  const float* vector(std::size_t tensor) const;
  kernels::KvHead kv_head(std::size_t layer, std::size_t head) const;
  float* scratch_of(const Team& team) const {
    return buffers_.thread_scratch + team.index() * buffers_.thread_floats;
  }
  Split split(std::size_t rows, std::size_t tiles, std::size_t most_rows,
              std::size_t most_tiles) const;

  void start_row(std::size_t row) const;
  void normalize(Team& team, std::span<const std::size_t> rows, const float* weight,
                 std::span<const PackedMatrix> readers) const;
  void multiply(Team& team, const kernels::Activations& inputs, std::size_t rows,
                std::span<const Product> products) const;
  void append_and_rotate(std::size_t layer, std::size_t row) const;
  void attend(Team& team, std::size_t layer) const;
  void feed_forward(Team& team, std::size_t layer) const;

  const ModelPlan& plan_;
  const LlamaConfig& config_;
  const TensorIndex index_;
  const std::byte* arena_;
  const kernels::CpuKernels& kernels_;
  std::byte* kv_cache_;
  const KvLayout& layout_;
  const ForwardBuffers& buffers_;
  const unsigned threads_;
  std::vector<TokenRow> rows_;
  std::vector<std::size_t> all_rows_;
  std::vector<std::size_t> sampled_rows_;
  std::vector<AttentionTile> tiles_;  // the longest first
};

}  // namespace dormouse

// Which tensor of a Llama model stands where in ModelPlan::tensors.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/llama.h"

namespace dormouse {

// Of a layer, in this order.
enum class LayerTensor : std::size_t {
  kAttentionNorm,
  kQuery,
  kKey,
  kValue,
  kAttentionOutput,
  kFfnNorm,
  kGate,
  kUp,
  kDown,
};
inline constexpr std::size_t kLayerTensors = 9;

// The tensors before the layers come in this order; the last two are there or not.
struct TensorIndex {
  std::size_t embedding = 0;
  std::size_t output_norm = 1;
  std::size_t output = 0;        // the embedding if tied
  std::size_t rope_factors = 0;  // valid with LlamaConfig::has_rope_factors
  std::size_t first_layer = 0;

  explicit TensorIndex(const LlamaConfig& config) {
    std::size_t next = 2;
    if (!config.tied_output)
      output = next++;
    if (config.has_rope_factors)
      rope_factors = next++;
    first_layer = next;
  }
  std::size_t layer(std::size_t index, LayerTensor tensor) const {
    return first_layer + index * kLayerTensors + static_cast<std::size_t>(tensor);
  }
};

}  // namespace dormouse

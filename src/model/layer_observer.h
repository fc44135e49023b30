// Watches a forward pass from the side of its layers.
//
// Threads: called on one thread of the pass at a time, while every other one waits.
#pragma once

#include <cstdint>

namespace dormouse {

class LayerObserver {
 public:
  virtual ~LayerObserver() = default;

  // Before the layer touches the KV cache.
  virtual void before_layer(std::uint32_t layer) = 0;
  // After the layer wrote its keys and values of this step.
  virtual void after_layer(std::uint32_t layer) = 0;
};

}  // namespace dormouse

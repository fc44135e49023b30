// A Llama model that computes in memory which others own.
//
// Owns:    the plan of where each weight lies, and nothing else. Weights are in the arena, keys and
//          values in the cache, activations in the scratch; all three may be unmapped between calls
//          and mapped again at the same addresses.
// Threads: one call at a time.
// Order:   load before forward. After the arena's content was dropped, load again: it writes the
//          same bytes, padding included.
// Bits:    keys, values and logits of a token depend on the tokens before it and on nothing else:
//          not on how they were cut into steps, who was computed beside them, or the number of
//          threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "dormouse/result.h"
#include "format/gguf.h"
#include "kernels/cpu/kernels.h"
#include "kv_cache/layout.h"
#include "model/layer_observer.h"
#include "model/llama_config.h"
#include "protocol/step.h"

namespace dormouse {

// In which order a file's rows are packed.
enum class RowOrder {
  kAsStored,
  kUnpairHeads,  // within each head rows 2i and 2i+1 become i and i + head_dim/2
};

// One tensor of the file and its place in the arena.
struct PlacedTensor {
  std::string name;
  format::GgmlType type = format::GgmlType::kF32;
  PackedForm form = PackedForm::kF32;
  std::uint32_t rows = 0;  // 1 for a vector, which is stored as plain floats
  std::uint32_t cols = 0;
  RowOrder order = RowOrder::kAsStored;
  std::size_t offset = 0;  // a multiple of 64
  std::size_t bytes = 0;   // a multiple of 64

  bool operator==(const PlacedTensor&) const = default;
};

struct ModelPlan {
  LlamaConfig config;
  std::vector<PlacedTensor> tensors;  // contiguous from offset 0
  std::size_t weight_bytes = 0;       // of the arena
};

class LlamaModel {
 public:
  // Bytes of the arena.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

  // Checks that the file has exactly the tensors of its architecture, each of the right shape and a
  // type that the kernels take. Errors: those of LlamaConfig::read; kDataLoss, kUnsupported.
  static Result<ModelPlan> plan(const format::GgufFile& file);

  // `arena`: plan.weight_bytes, aligned to 64 bytes, and mapped whenever load or forward runs.
  // `kernels` outlives the model.
  LlamaModel(ModelPlan plan, std::span<std::byte> arena, const kernels::CpuKernels& kernels);

  const LlamaConfig& config() const { return plan_.config; }

  // Whether load would take the file, before anything is written.
  Status check_same(const format::GgufFile& file) const;

  // Packs the weights of `file`, which has the plan's tensors, into the arena and writes every byte
  // of it. `progress` (may be empty) is called on the caller's thread. Errors: kFailedPrecondition
  // if the file's tensors are not the plan's; kDataLoss if it changed meanwhile; kCancelled once
  // `cancel` is set. After an error the arena holds part of the weights.
  Status load(const format::GgufFile& file, ThreadPool& pool, const Progress& progress,
              const std::atomic<bool>& cancel);

  // Bytes of scratch, aligned to 64, for steps of up to `max_tokens` tokens on `threads` threads.
  std::size_t scratch_bytes(std::uint32_t max_tokens, unsigned threads) const;

  // Computes all tokens of the plan, writes their keys and values, and one row of vocab_size logits
  // for each sequence with `samples`, in plan order. Errors: kInvalidArgument for a token outside
  // the vocabulary, or a plan that does not fit the scratch, the logits or its block tables;
  // nothing was written then. `observer` may be null.
  Status forward(const StepPlan& step, std::byte* kv_cache, const KvLayout& layout,
                 ThreadPool& pool, std::span<std::byte> scratch, std::span<float> logits,
                 LayerObserver* observer = nullptr) const;

 private:
  ModelPlan plan_;
  std::span<std::byte> arena_;
  const kernels::CpuKernels& kernels_;
};

}  // namespace dormouse

// One rank: its device memory, its model, its part of every step and transition.
//
// Owns:    the allocator, everything allocated from it, the compute threads.
// Threads: one, the engine's.
// Order:   load before anything else; execute only while every tag is mapped and the weights are
//          valid.
// Errors:  those of TaggedAllocator and LlamaModel; after one, ask for the state.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "device/copier.h"
#include "device/vmm_driver.h"
#include "dormouse/config.h"
#include "kv_cache/layout.h"
#include "kv_connector/kv_transfer_scope.h"
#include "memory/tagged_allocator.h"
#include "model/llama.h"
#include "protocol/rank_call.h"
#include "protocol/step.h"
#include "worker/sampler.h"

namespace dormouse {

inline const MemoryTag kScratchTag{"scratch"};

// What the model and the memory turned out to be. Sizes in tokens or blocks.
struct ModelFacts {
  std::uint32_t vocab_size = 0;
  std::uint32_t max_model_len = 0;
  std::uint32_t num_blocks = 0;
  KvLayout kv_layout;
  std::string kernel;
  std::size_t world_size = 1;
  KvShape kv_shape;  // of rank 0
};

struct LoadControl {
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};  // bytes
  const std::atomic<bool>& cancelled;
};

// How many threads a rank computes and copies with.
unsigned thread_count(const EngineConfig& config);

class Worker {
 public:
  Worker(EngineConfig config, VmmDriver& driver, Copier& copier);
  ~Worker();

  // Allocates every tag and loads the weights.
  Result<ModelFacts> load(const LoadControl& control);

  Result<RankReply> call(const RankCall& call, const TransitionControl& control);
  // `end_tokens`: those that min_tokens holds back.
  Result<StepResult> execute(const StepPlan& plan, std::span<const TokenId> end_tokens);

  TaggedAllocator& allocator() { return allocator_; }

 private:
  Status allocate(const ModelPlan& plan, ModelFacts& facts);
  Status refill_weights(const format::GgufFile& file);
  Status seal_weights();
  Status reload_weights();
  Status start_kv_transfer(const ModelFacts& facts);
  Status forward(const StepPlan& plan, StepResult& result, std::span<const TokenId> end_tokens);
  void hash_model();
  Result<MemoryReceipt> transition(const RankCall& call, const TransitionControl& control);
  RankState state() const;

  const EngineConfig config_;
  VmmDriver& driver_;
  TaggedAllocator allocator_;
  ThreadPool pool_;
  Sampler sampler_;
  std::optional<LlamaModel> model_;
  KvLayout layout_;
  TaggedMemory weights_;
  TaggedMemory kv_cache_;
  TaggedMemory scratch_;
  std::size_t logits_offset_ = 0;
  bool weights_valid_ = false;
  std::string model_hash_;
  std::unique_ptr<KvTransferScope> kv_transfer_;  // null without a connector
};

}  // namespace dormouse

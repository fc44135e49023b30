// A tiny model in a file, loaded, with memory to run in. For tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "model/llama.h"
#include "model/tiny_llama.h"

namespace dormouse {

class ModelFile {
 public:
  explicit ModelFile(const format::GgufWriter& writer)
      : path_(testing::TempDir() + "llama_test_" + std::to_string(getpid()) + "_" +
              std::to_string(reinterpret_cast<std::uintptr_t>(this)) + ".gguf") {
    EXPECT_TRUE(writer.write(path_));
    auto opened = format::GgufFile::open(path_);
    EXPECT_TRUE(opened) << opened.error().message;
    file_.emplace(std::move(*opened));
    std::remove(path_.c_str());
  }
  const format::GgufFile& operator*() const { return *file_; }

 private:
  std::string path_;
  std::optional<format::GgufFile> file_;
};

// Zeroed memory aligned to 64 bytes.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t size) : size_(size), chunks_(size / sizeof(Chunk) + 1) {}
  std::span<std::byte> span() { return {chunks_[0].bytes, size_}; }

 private:
  struct alignas(64) Chunk {
    std::byte bytes[64] = {};
  };
  std::size_t size_;
  std::vector<Chunk> chunks_;
};

class LoadedLlama {
 public:
  static constexpr std::uint32_t kBlockSize = 16;
  static constexpr std::uint32_t kBlocksEach = 5;  // of a sequence
  static constexpr std::uint32_t kSequences = 4;
  static constexpr std::uint32_t kMaxTokens = 128;

  LoadedLlama(const format::GgufFile& file, const kernels::CpuKernels& kernels, unsigned threads)
      : pool(threads),
        plan(LlamaModel::plan(file).value()),
        arena(plan.weight_bytes),
        model(plan, arena.span(), kernels),
        layout(plan.config.kv_layout(kBlockSize)),
        cache(layout.block_bytes() * kBlocksEach * kSequences),
        scratch(model.scratch_bytes(kMaxTokens, threads)) {
    const Status loaded = model.load(file, pool, {}, cancel);
    EXPECT_TRUE(loaded) << loaded.error().message;
  }

  // Sequence `index` of the cache owns its own blocks, which lie in no order.
  ScheduledSequence sequence(std::uint32_t index, std::vector<TokenId> tokens,
                             std::uint32_t first_position) const {
    ScheduledSequence out;
    out.id = index;
    out.tokens = std::move(tokens);
    out.first_position = first_position;
    out.samples = true;
    for (std::uint32_t i = 0; i < kBlocksEach; ++i)
      out.block_table.push_back((kBlocksEach - 1 - i) * kSequences + index);
    return out;
  }

  // Runs one step and returns its logits.
  std::vector<float> step(std::vector<ScheduledSequence> sequences) {
    StepPlan step;
    std::size_t sampled = 0;
    for (const ScheduledSequence& each : sequences) {
      step.total_tokens += static_cast<std::uint32_t>(each.tokens.size());
      sampled += each.samples ? 1 : 0;
    }
    step.sequences = std::move(sequences);
    std::vector<float> logits(sampled * plan.config.vocab_size);
    const Status done =
        model.forward(step, cache.span().data(), layout, pool, scratch.span(), logits);
    EXPECT_TRUE(done) << done.error().message;
    return logits;
  }

  ThreadPool pool;
  std::atomic<bool> cancel{false};
  ModelPlan plan;
  AlignedBytes arena;
  LlamaModel model;
  KvLayout layout;
  AlignedBytes cache;
  AlignedBytes scratch;
};

}  // namespace dormouse

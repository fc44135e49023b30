#include "model/llama.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "kernels/cpu/packed_rows.h"
#include "model/llama_fixture.h"

namespace dormouse {
namespace {

using format::GgmlType;
using kernels::Isa;

constexpr std::uint32_t kPositions = 64;

std::vector<TokenId> random_tokens(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens)
    token = static_cast<TokenId>(random() % 150);
  return tokens;
}

std::vector<TokenId> slice(const std::vector<TokenId>& tokens, std::size_t first,
                           std::size_t count) {
  return {tokens.begin() + static_cast<std::ptrdiff_t>(first),
          tokens.begin() + static_cast<std::ptrdiff_t>(first + count)};
}

// What a sequence left behind: its cached keys and values, and its logits after each step.
struct Trace {
  std::vector<std::byte> cache;
  std::map<std::uint32_t, std::vector<float>> logits;  // by the step's last position
};

Trace run_in_steps(LoadedLlama& llama, const std::vector<TokenId>& tokens, std::uint32_t size,
                   bool beside_others) {
  Trace trace;
  const std::uint32_t vocab = llama.plan.config.vocab_size;
  const std::vector<TokenId> others = random_tokens(256, 77);
  for (std::uint32_t first = 0; first < kPositions; first += size) {
    std::vector<ScheduledSequence> step;
    if (beside_others)
      step.push_back(llama.sequence(0, slice(others, first, 17), 0));
    step.push_back(llama.sequence(1, slice(tokens, first, size), first));
    if (beside_others) {
      step.push_back(llama.sequence(2, slice(others, first, 1), first));
      step.push_back(llama.sequence(3, slice(others, 2 * first, 5), first));
    }
    const std::vector<float> logits = llama.step(std::move(step));
    const auto begin = logits.begin() + (beside_others ? vocab : 0);
    trace.logits[first + size - 1].assign(begin, begin + vocab);
  }
  const std::size_t bytes = llama.layout.block_bytes();
  const auto table = llama.sequence(1, {0}, 0).block_table;
  for (std::uint32_t i = 0; i < kPositions / LoadedLlama::kBlockSize; ++i) {
    const auto block = llama.cache.span().subspan(table[i] * bytes, bytes);
    trace.cache.insert(trace.cache.end(), block.begin(), block.end());
  }
  return trace;
}

struct LlamaBits : testing::TestWithParam<std::tuple<Isa, GgmlType>> {};
INSTANTIATE_TEST_SUITE_P(Models, LlamaBits,
                         testing::Combine(testing::ValuesIn(kernels::supported_isas()),
                                          testing::ValuesIn(kernels::kPackableTypes)),
                         [](const auto& each) {
                           return std::string(to_string(std::get<0>(each.param))) + "_" +
                                  std::string(type_name(std::get<1>(each.param)));
                         });

TEST_P(LlamaBits, DoNotDependOnStepsNeighboursOrThreads) {
  TinyLlama tiny;
  tiny.matrices = tiny.embedding = std::get<1>(GetParam());
  const ModelFile file(tiny.writer());
  const kernels::CpuKernels& kernels = kernels::cpu_kernels(std::get<0>(GetParam()));
  const std::vector<TokenId> tokens = random_tokens(kPositions, 5);
  LoadedLlama reference(*file, kernels, 1);
  const Trace one_by_one = run_in_steps(reference, tokens, 1, false);
  for (const unsigned threads : {1U, 2U})
    for (const bool beside_others : {false, true})
      for (const std::uint32_t size : {64U, 16U, 1U}) {
        LoadedLlama llama(*file, kernels, threads);
        const Trace trace = run_in_steps(llama, tokens, size, beside_others);
        const std::string which = fmt::format("{} threads, steps of {}, {}", threads, size,
                                              beside_others ? "beside others" : "alone");
        EXPECT_EQ(trace.cache, one_by_one.cache) << which;
        for (const auto& [position, logits] : trace.logits)
          EXPECT_EQ(logits, one_by_one.logits.at(position)) << which << ", at " << position;
      }
}

// The whole model again, in double precision, from the file's own tensors.
class PlainLlama {
 public:
  explicit PlainLlama(const format::GgufFile& file)
      : file_(file), config_(LlamaConfig::read(file).value()) {}

  std::vector<double> logits_after(const std::vector<TokenId>& tokens) {
    std::vector<double> x;
    keys_.assign(config_.num_layers, {});
    values_.assign(config_.num_layers, {});
    for (std::size_t position = 0; position < tokens.size(); ++position) {
      x = row("token_embd.weight", static_cast<std::size_t>(tokens[position]));
      for (std::uint32_t layer = 0; layer < config_.num_layers; ++layer) {
        const std::string prefix = fmt::format("blk.{}.", layer);
        add(x, attention(layer, prefix, position, normed(x, prefix + "attn_norm.weight")));
        const std::vector<double> y = normed(x, prefix + "ffn_norm.weight");
        std::vector<double> gate = product(prefix + "ffn_gate.weight", y);
        const std::vector<double> up = product(prefix + "ffn_up.weight", y);
        for (std::size_t i = 0; i < gate.size(); ++i)
          gate[i] *= up[i] / (1 + std::exp(-gate[i]));
        add(x, product(prefix + "ffn_down.weight", gate));
      }
    }
    return product(config_.tied_output ? "token_embd.weight" : "output.weight",
                   normed(x, "output_norm.weight"));
  }

 private:
  std::vector<double> row(const std::string& name, std::size_t index) const {
    const format::TensorInfo& info = *file_.find_tensor(name);
    const StoredMatrix stored{info.type, static_cast<std::uint32_t>(info.rows()),
                              static_cast<std::uint32_t>(info.row_length()),
                              file_.tensor_bytes(info).data()};
    std::vector<float> values(stored.cols);
    dequantize_row(info.type, stored.row(index), stored.cols, values.data());
    return {values.begin(), values.end()};
  }
  std::vector<double> product(const std::string& name, const std::vector<double>& x) const {
    std::vector<double> out(file_.find_tensor(name)->rows());
    for (std::size_t n = 0; n < out.size(); ++n) {
      const std::vector<double> weights = row(name, n);
      for (std::size_t k = 0; k < x.size(); ++k)
        out[n] += weights[k] * x[k];
    }
    return out;
  }
  std::vector<double> normed(std::vector<double> x, const std::string& name) const {
    const std::vector<double> weights = row(name, 0);
    double squares = 0;
    for (const double value : x)
      squares += value * value;
    const double root =
        std::sqrt(squares / static_cast<double>(x.size()) + double{config_.rms_epsilon});
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] *= weights[i] / root;
    return x;
  }
  static void add(std::vector<double>& to, const std::vector<double>& what) {
    for (std::size_t i = 0; i < to.size(); ++i)
      to[i] += what[i];
  }
  // As the cache keeps it.
  static std::vector<double> rounded(std::vector<double> values) {
    for (double& value : values)
      value = f32_from_f16(f16_from_f32(static_cast<float>(value)));
    return values;
  }
  // As the file has it: pairs are neighbours.
  void rotate(std::vector<double>& heads, std::size_t position) const {
    for (std::size_t at = 0; at < heads.size(); at += 2) {
      const std::size_t pair = at % config_.head_dim / 2;
      const double factor = config_.has_rope_factors ? row("rope_freqs.weight", 0)[pair] : 1.0;
      const double angle =
          static_cast<double>(position) / factor *
          std::pow(double{config_.rope_base}, -2.0 * static_cast<double>(pair) / config_.head_dim);
      const double a = heads[at];
      const double b = heads[at + 1];
      heads[at] = a * std::cos(angle) - b * std::sin(angle);
      heads[at + 1] = a * std::sin(angle) + b * std::cos(angle);
    }
  }
  std::vector<double> attention(std::uint32_t layer, const std::string& prefix,
                                std::size_t position, const std::vector<double>& x) {
    std::vector<double> query = product(prefix + "attn_q.weight", x);
    std::vector<double> key = product(prefix + "attn_k.weight", x);
    rotate(query, position);
    rotate(key, position);
    keys_[layer].push_back(rounded(key));
    values_[layer].push_back(rounded(product(prefix + "attn_v.weight", x)));
    const std::size_t dim = config_.head_dim;
    std::vector<double> out(query.size());
    for (std::size_t head = 0; head < config_.num_heads; ++head) {
      const std::size_t kv = head / (config_.num_heads / config_.num_kv_heads) * dim;
      std::vector<double> weights;
      double total = 0;
      for (const std::vector<double>& each : keys_[layer]) {
        double score = 0;
        for (std::size_t d = 0; d < dim; ++d)
          score += query[head * dim + d] * each[kv + d];
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(dim))));
        total += weights.back();
      }
      for (std::size_t p = 0; p < weights.size(); ++p)
        for (std::size_t d = 0; d < dim; ++d)
          out[head * dim + d] += weights[p] / total * values_[layer][p][kv + d];
    }
    return product(prefix + "attn_output.weight", out);
  }

  const format::GgufFile& file_;
  LlamaConfig config_;
  std::vector<std::vector<std::vector<double>>> keys_;  // [layer][position][kv_size]
  std::vector<std::vector<std::vector<double>>> values_;
};

// The distance of two vectors, relative to the second one's length.
double distance(const std::vector<float>& found, const std::vector<double>& right) {
  double difference = 0;
  double length = 0;
  for (std::size_t i = 0; i < right.size(); ++i) {
    difference += (found[i] - right[i]) * (found[i] - right[i]);
    length += right[i] * right[i];
  }
  return std::sqrt(difference / length);
}

TEST(Llama, ComputesWhatItsDefinitionSays) {
  for (const bool variant : {false, true}) {
    TinyLlama tiny;
    tiny.tied = !variant;
    tiny.rope_factors = variant;
    tiny.heads = variant ? 4 : 3;
    tiny.kv_heads = variant ? 2 : 1;
    const ModelFile file(tiny.writer());
    const std::vector<TokenId> tokens = random_tokens(40, 8);
    const std::vector<double> right = PlainLlama(*file).logits_after(tokens);
    for (const Isa isa : kernels::supported_isas()) {
      LoadedLlama llama(*file, kernels::cpu_kernels(isa), 2);
      const std::vector<float> logits = llama.step({llama.sequence(0, tokens, 0)});
      EXPECT_LT(distance(logits, right), 1e-4) << to_string(isa) << (variant ? " variant" : "");
    }
  }
}

TEST(Llama, QuantizedActivationsStayNearTheDefinition) {
  for (const GgmlType type : kernels::kPackableTypes) {
    TinyLlama tiny;
    tiny.matrices = tiny.embedding = type;
    const ModelFile file(tiny.writer());
    const std::vector<TokenId> tokens = random_tokens(20, 9);
    const std::vector<double> right = PlainLlama(*file).logits_after(tokens);
    for (const Isa isa : kernels::supported_isas()) {
      LoadedLlama llama(*file, kernels::cpu_kernels(isa), 1);
      const std::vector<float> logits = llama.step({llama.sequence(0, tokens, 0)});
      EXPECT_LT(distance(logits, right), 0.05) << to_string(isa) << " " << type_name(type);
    }
  }
}

TEST(Llama, GivesLogitsOnlyForSequencesThatSample) {
  const ModelFile file(TinyLlama{}.writer());
  LoadedLlama llama(*file, kernels::cpu_kernels(kernels::supported_isas().back()), 2);
  const std::vector<float> alone = llama.step({llama.sequence(2, {7, 8, 9}, 0)});
  ScheduledSequence silent = llama.sequence(0, {1, 2, 3, 4}, 0);
  silent.samples = false;
  const std::vector<float> logits = llama.step({silent, llama.sequence(2, {7, 8, 9}, 0)});
  EXPECT_EQ(logits, alone);
  EXPECT_TRUE(llama.step({silent}).empty());
}

TEST(Llama, LoadsAgainToTheSameBytesWhateverWasThere) {
  for (const GgmlType type : kernels::kPackableTypes) {
    TinyLlama tiny;
    tiny.matrices = tiny.embedding = type;
    const ModelFile file(tiny.writer());
    LoadedLlama llama(*file, kernels::cpu_kernels(Isa::kScalar), 1);
    const auto arena = llama.arena.span();
    const std::vector<std::byte> first(arena.begin(), arena.end());
    std::fill(arena.begin(), arena.end(), std::byte{0xa5});
    ThreadPool two(2);
    ASSERT_TRUE(llama.model.load(*file, two, {}, llama.cancel));
    EXPECT_TRUE(std::equal(arena.begin(), arena.end(), first.begin())) << type_name(type);
  }
}

TEST(Llama, ReportsProgressAndStopsWhenItIsCancelled) {
  const ModelFile file(TinyLlama{}.writer());
  LoadedLlama llama(*file, kernels::cpu_kernels(Isa::kScalar), 1);
  std::vector<std::uint64_t> done;
  ASSERT_TRUE(llama.model.load(
      *file, llama.pool,
      [&](std::uint64_t bytes, std::uint64_t total) {
        EXPECT_EQ(total, llama.plan.weight_bytes);
        done.push_back(bytes);
      },
      llama.cancel));
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.size(), llama.plan.tensors.size());
  EXPECT_EQ(done.back(), llama.plan.weight_bytes);

  std::size_t calls = 0;
  const Status stopped = llama.model.load(
      *file, llama.pool,
      [&](std::uint64_t, std::uint64_t) {
        ++calls;
        llama.cancel = true;
      },
      llama.cancel);
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(calls, 1U);
}

TEST(Llama, RefusesToLoadAnotherModelsFile) {
  const ModelFile file(TinyLlama{}.writer());
  TinyLlama wider;
  wider.ffn = 192;
  const ModelFile other(wider.writer());
  LoadedLlama llama(*file, kernels::cpu_kernels(Isa::kScalar), 1);
  const Status loaded = llama.model.load(*other, llama.pool, {}, llama.cancel);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::kFailedPrecondition);
}

TEST(Llama, RefusesStepsThatDoNotFit) {
  const ModelFile file(TinyLlama{}.writer());
  LoadedLlama llama(*file, kernels::cpu_kernels(Isa::kScalar), 1);
  std::vector<float> logits(llama.plan.config.vocab_size);
  const auto refusal = [&](ScheduledSequence sequence, std::size_t logits_size,
                           std::size_t scratch_size) {
    StepPlan step;
    step.total_tokens = static_cast<std::uint32_t>(sequence.tokens.size());
    step.sequences = {std::move(sequence)};
    const Status done = llama.model.forward(step, llama.cache.span().data(), llama.layout,
                                            llama.pool, llama.scratch.span().first(scratch_size),
                                            std::span(logits).first(logits_size));
    return done ? "accepted" : done.error().message;
  };
  const std::size_t room = llama.scratch.span().size();
  EXPECT_EQ(refusal(llama.sequence(0, {1}, 0), 150, room), "accepted");
  EXPECT_THAT(refusal(llama.sequence(0, {150}, 0), 150, room), testing::HasSubstr("token 150"));
  EXPECT_THAT(refusal(llama.sequence(0, {-1}, 0), 150, room), testing::HasSubstr("token -1"));
  EXPECT_THAT(refusal(llama.sequence(0, {1}, 80), 150, room), testing::HasSubstr("5 blocks"));
  EXPECT_THAT(refusal(llama.sequence(0, {1}, 0), 149, room), testing::HasSubstr("logits"));
  EXPECT_THAT(refusal(llama.sequence(0, {1}, 0), 150, 64), testing::HasSubstr("scratch"));
}

}  // namespace
}  // namespace dormouse

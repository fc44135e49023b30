#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "tensor/half.h"

namespace dormouse::kernels {
namespace {

constexpr std::size_t kHeads = 3;  // that share one kv head
constexpr std::size_t kPositions = 150;
constexpr std::size_t kOtherElements = 48;  // of a block before our head's keys

std::vector<float> random_values(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(count);
  for (float& value : values)
    value = normal(random);
  return values;
}

// A cache of one kv head, whose blocks lie in no order and hold NaN where nothing was written.
class Cache {
 public:
  Cache(const CpuKernels& kernels, std::uint32_t block_size, std::uint32_t head_dim,
        const std::vector<float>& keys, const std::vector<float>& values)
      : kernels_(kernels) {
    const std::size_t blocks = (kPositions + block_size - 1) / block_size;
    const std::size_t plane = std::size_t{block_size} * head_dim;
    const std::size_t stride = kOtherElements + 2 * plane;
    halves_.assign(blocks * stride, 0x7e00);
    head_ = {halves_.data(), stride, kOtherElements, kOtherElements + plane, block_size, head_dim};
    for (std::size_t i = 0; i < blocks; ++i)
      table_.push_back(static_cast<std::uint32_t>(blocks - 1 - i));
    for (std::size_t p = 0; p < kPositions; ++p)
      kernels.append(head_, table_[p / block_size], p % block_size, &keys[p * head_dim],
                     &values[p * head_dim]);
  }

  std::vector<float> attend(const std::vector<float>& queries, std::size_t first,
                            std::size_t tokens) const {
    const std::size_t row = kHeads * head_.head_dim;
    std::vector<float> out(tokens * row);
    std::vector<float> scratch(attention_scratch_floats(kHeads, head_.head_dim), NAN);
    kernels_.attend({head_, table_.data(), first, tokens, kHeads, &queries[first * row], row,
                     out.data(), row, scratch.data()});
    return out;
  }

  const std::vector<std::uint16_t>& halves() const { return halves_; }

 private:
  const CpuKernels& kernels_;
  std::vector<std::uint16_t> halves_;
  std::vector<std::uint32_t> table_;
  KvHead head_;
};

float rounded(float value) {
  return f32_from_f16(f16_from_f32(value));
}

struct AttentionTest : testing::TestWithParam<Isa> {
  const CpuKernels& kernels = cpu_kernels(GetParam());
  std::uint32_t head_dim = 64;
  std::vector<float> keys = random_values(kPositions * head_dim, 1);
  std::vector<float> values = random_values(kPositions * head_dim, 2);
  std::vector<float> queries = random_values(kPositions * kHeads * head_dim, 3);

  std::vector<double> expected(std::size_t position, std::size_t head) const {
    const float* query = &queries[(position * kHeads + head) * head_dim];
    std::vector<double> weights;
    double total = 0;
    for (std::size_t p = 0; p <= position; ++p) {
      double score = 0;
      for (std::size_t d = 0; d < head_dim; ++d)
        score += double{query[d]} * rounded(keys[p * head_dim + d]);
      weights.push_back(std::exp(score));
      total += weights.back();
    }
    std::vector<double> out(head_dim);
    for (std::size_t p = 0; p <= position; ++p)
      for (std::size_t d = 0; d < head_dim; ++d)
        out[d] += weights[p] / total * rounded(values[p * head_dim + d]);
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, AttentionTest, testing::ValuesIn(supported_isas()),
                         [](const auto& each) { return std::string(to_string(each.param)); });

TEST_P(AttentionTest, AgreesWithDoublePrecision) {
  const Cache cache(kernels, 16, head_dim, keys, values);
  for (std::size_t p = 0; p < kPositions; ++p) {
    const std::vector<float> out = cache.attend(queries, p, 1);
    for (std::size_t head = 0; head < kHeads; ++head) {
      const std::vector<double> right = expected(p, head);
      for (std::size_t d = 0; d < head_dim; ++d)
        ASSERT_NEAR(out[head * head_dim + d], right[d], 2e-5) << p;
    }
  }
}

TEST_P(AttentionTest, BitsDoNotDependOnTheNumberOfQueries) {
  const Cache cache(kernels, 16, head_dim, keys, values);
  const std::size_t row = kHeads * head_dim;
  std::vector<float> alone;
  for (std::size_t p = 0; p < kPositions; ++p) {
    const std::vector<float> out = cache.attend(queries, p, 1);
    alone.insert(alone.end(), out.begin(), out.end());
  }
  for (std::size_t tokens = 2; tokens <= kAttentionTokens; ++tokens)
    for (std::size_t p = 0; p + tokens <= kPositions; p += tokens) {
      const std::vector<float> out = cache.attend(queries, p, tokens);
      ASSERT_TRUE(std::equal(out.begin(), out.end(), alone.begin() + p * row))
          << tokens << " tokens at " << p;
    }
}

TEST_P(AttentionTest, BitsDoNotDependOnTheBlockSize) {
  const Cache reference(kernels, 16, head_dim, keys, values);
  for (const std::uint32_t block_size : {1U, 5U, 8U, 24U, 32U, 64U}) {
    const Cache cache(kernels, block_size, head_dim, keys, values);
    for (const std::size_t p : {0U, 15U, 16U, 63U, 64U, 100U, 140U})
      ASSERT_EQ(cache.attend(queries, p, 4), reference.attend(queries, p, 4))
          << block_size << " at " << p;
  }
}

TEST_P(AttentionTest, SurvivesScoresOfAnySize) {
  for (float& query : queries)
    query *= 100;
  const Cache cache(kernels, 16, head_dim, keys, values);
  for (const float value : cache.attend(queries, kPositions - 16, 16))
    ASSERT_TRUE(std::isfinite(value));
}

TEST_P(AttentionTest, AppendsKeysByElementAndValuesByPosition) {
  const Cache cache(kernels, 8, head_dim, keys, values);
  const std::size_t block = (kPositions + 7) / 8 - 1 - 1;  // of positions 8 to 15
  const std::size_t start = block * (kOtherElements + 2 * 8 * head_dim) + kOtherElements;
  for (std::size_t d = 0; d < head_dim; ++d) {
    EXPECT_EQ(cache.halves()[start + d * 8 + 3], f16_from_f32(keys[11 * head_dim + d]));
    EXPECT_EQ(cache.halves()[start + 8 * head_dim + 3 * head_dim + d],
              f16_from_f32(values[11 * head_dim + d]));
  }
}

}  // namespace
}  // namespace dormouse::kernels

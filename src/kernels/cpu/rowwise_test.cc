#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/kernels.h"

namespace dormouse::kernels {
namespace {

std::vector<float> random_values(std::size_t count, float scale, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values)
    value = normal(random);
  return values;
}

struct RowwiseTest : testing::TestWithParam<Isa> {
  const CpuKernels& kernels = cpu_kernels(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Kernels, RowwiseTest, testing::ValuesIn(supported_isas()),
                         [](const auto& each) { return std::string(to_string(each.param)); });

TEST_P(RowwiseTest, QuantizesToTheNearestStepOfEachBlock) {
  std::vector<float> values = random_values(96, 3, 1);
  std::fill(values.begin() + 32, values.begin() + 64, 0.0F);
  std::vector<std::int8_t> quants(96);
  std::vector<float> scales(3);
  std::vector<float> sums(3);
  kernels.quantize(values.data(), 96, quants.data(), scales.data(), sums.data());
  for (std::size_t block = 0; block < 3; ++block) {
    float largest = 0;
    int sum = 0;
    for (std::size_t k = block * 32; k < block * 32 + 32; ++k) {
      largest = std::max(largest, std::abs(values[k]));
      sum += quants[k];
      EXPECT_LE(std::abs(values[k] - scales[block] * quants[k]), scales[block] * 0.50001F);
    }
    EXPECT_EQ(scales[block], largest / 127);
    EXPECT_EQ(sums[block], scales[block] * static_cast<float>(sum));
  }
  EXPECT_EQ(scales[1], 0);
}

TEST_P(RowwiseTest, NormalizesByTheRootOfTheMeanSquare) {
  for (const std::size_t size : {32U, 96U, 576U}) {
    const std::vector<float> in = random_values(size, 2, 2);
    const std::vector<float> weight = random_values(size, 1, 3);
    std::vector<float> out(size);
    kernels.rms_norm(in.data(), weight.data(), size, 1e-5F, out.data());
    double squares = 0;
    for (const float x : in)
      squares += double{x} * x;
    const double factor = 1 / std::sqrt(squares / static_cast<double>(size) + 1e-5);
    for (std::size_t i = 0; i < size; ++i)
      EXPECT_NEAR(out[i], in[i] * factor * weight[i], 1e-6 * std::abs(in[i] * weight[i]) + 1e-7);
  }
}

TEST_P(RowwiseTest, TurnsPairsThatAreHalfAHeadApart) {
  const std::vector<float> in = random_values(64, 1, 4);
  std::vector<float> head = in;
  std::vector<float> cosines(32);
  std::vector<float> sines(32);
  for (std::size_t i = 0; i < 32; ++i) {
    cosines[i] = std::cos(static_cast<float>(i));
    sines[i] = std::sin(static_cast<float>(i));
  }
  kernels.rotate(head.data(), cosines.data(), sines.data(), 64, 0.5F);
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_NEAR(head[i], 0.5 * (in[i] * cosines[i] - in[i + 32] * sines[i]), 1e-6);
    EXPECT_NEAR(head[i + 32], 0.5 * (in[i + 32] * cosines[i] + in[i] * sines[i]), 1e-6);
  }
}

// Its exponential is our own: from far below where it vanishes to far above where it is cut off.
TEST_P(RowwiseTest, GatesFromOneExtremeToTheOther) {
  std::vector<float> gate;
  for (int i = 0; i < 4096; ++i)
    gate.push_back(static_cast<float>(i - 2048) / 16.0F);
  const std::vector<float> up(gate.size(), 3.0F);
  std::vector<float> out(gate.size());
  kernels.swiglu(gate.data(), up.data(), gate.size(), out.data());
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double expected = gate[i] / (1 + std::exp(-double{gate[i]})) * 3;
    EXPECT_NEAR(out[i], expected, 1e-6 * std::abs(expected) + 1e-35) << gate[i];
  }
}

}  // namespace
}  // namespace dormouse::kernels

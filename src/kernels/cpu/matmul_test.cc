#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/packed_rows.h"

namespace dormouse::kernels {
namespace {

using format::GgmlType;

class Inputs {
 public:
  Inputs(const CpuKernels& kernels, std::vector<float> values, std::size_t cols)
      : values_(std::move(values)),
        quants_(values_.size()),
        scales_(values_.size() / kQuantBlock),
        sums_(scales_.size()) {
    view_ = {cols, values_.data(), quants_.data(), scales_.data(), sums_.data()};
    for (std::size_t row = 0; row < values_.size() / cols; ++row)
      kernels.quantize(&values_[row * cols], cols, &quants_[row * cols],
                       &scales_[row * cols / kQuantBlock], &sums_[row * cols / kQuantBlock]);
  }
  const Activations& view() const { return view_; }
  // What the kernels see: rounded for quantized weights.
  double value(bool quantized, std::size_t index) const {
    return quantized ? double{scales_[index / kQuantBlock]} * quants_[index] : values_[index];
  }

 private:
  std::vector<float> values_;
  std::vector<std::int8_t> quants_;
  std::vector<float> scales_;
  std::vector<float> sums_;
  Activations view_;
};

std::vector<float> random_values(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values)
    value = normal(random);
  return values;
}

constexpr std::uint32_t kRows = 150;  // of weights: the last tile is cut
constexpr std::uint32_t kCols = 160;
constexpr std::size_t kInputs = 11;

struct MatmulTest : testing::TestWithParam<std::tuple<Isa, GgmlType>> {
  const CpuKernels& kernels = cpu_kernels(std::get<0>(GetParam()));
  const PackedRows weights{std::get<1>(GetParam()), kRows, kCols, 5};
  const bool quantized = is_quantized(weights.packed.form);
  const Inputs inputs{kernels, random_values(kInputs* kCols, 6), kCols};

  std::vector<float> product() const {
    std::vector<float> out(kInputs * kRows);
    kernels.matmul({&weights.packed, &inputs.view(), 0, weights.packed.tiles(), 0, kInputs,
                    out.data(), kRows, false});
    return out;
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, MatmulTest,
                         testing::Combine(testing::ValuesIn(supported_isas()),
                                          testing::ValuesIn(kPackableTypes)),
                         [](const auto& each) {
                           return std::string(to_string(std::get<0>(each.param))) + "_" +
                                  std::string(type_name(std::get<1>(each.param)));
                         });

TEST_P(MatmulTest, AgreesWithDoublePrecision) {
  const std::vector<float> out = product();
  for (std::size_t n = 0; n < kRows; ++n) {
    const std::vector<float> row = weights.row(n);
    for (std::size_t m = 0; m < kInputs; ++m) {
      double sum = 0;
      double magnitude = 0;
      for (std::size_t k = 0; k < kCols; ++k) {
        const double product = double{row[k]} * inputs.value(quantized, m * kCols + k);
        sum += product;
        magnitude += std::abs(product);
      }
      ASSERT_NEAR(out[m * kRows + n], sum, 1e-6 * magnitude) << m << " " << n;
    }
  }
}

TEST_P(MatmulTest, BitsDoNotDependOnTheRanges) {
  const std::vector<float> whole = product();
  std::vector<float> pieces(whole.size());
  const std::size_t tiles = weights.packed.tiles();
  for (const std::size_t some_rows : {1U, 2U, 3U, 5U})
    for (const std::size_t some_tiles : {1U, 2U, 5U}) {
      std::fill(pieces.begin(), pieces.end(), -1.0F);
      for (std::size_t row = 0; row < kInputs; row += some_rows)
        for (std::size_t tile = 0; tile < tiles; tile += some_tiles)
          kernels.matmul({&weights.packed, &inputs.view(), tile, std::min(tile + some_tiles, tiles),
                          row, std::min(row + some_rows, kInputs),
                          &pieces[row * kRows + tile * kTileRows], kRows, false});
      ASSERT_EQ(pieces, whole) << some_rows << " x " << some_tiles;
    }
}

TEST_P(MatmulTest, AddsToWhatIsThere) {
  const std::vector<float> sums = product();
  const std::vector<float> before = random_values(sums.size(), 7);
  std::vector<float> out = before;
  kernels.matmul({&weights.packed, &inputs.view(), 0, weights.packed.tiles(), 0, kInputs,
                  out.data(), kRows, true});
  for (std::size_t i = 0; i < out.size(); ++i)
    ASSERT_EQ(out[i], before[i] + sums[i]);
}

// The largest quants of both sides, where narrow sums would overflow.
TEST_P(MatmulTest, ExtremesDoNotOverflow) {
  if (!quantized)
    return;
  for (const int pattern : {0xff, 0x00, 0x80, 0x7f}) {
    const GgmlType type = std::get<1>(GetParam());
    std::vector<std::byte> bytes = random_rows(type, kTileRows, kCols, 8);
    const format::BlockShape shape = format::block_shape(type);
    for (std::size_t at = 0; at < bytes.size(); at += shape.bytes)
      for (std::size_t i = type == GgmlType::kQ4_1 ? 4 : 2; i < shape.bytes; ++i)
        bytes[at + i] = static_cast<std::byte>(pattern);
    const PackedRows extreme(type, kTileRows, kCols, bytes);
    for (const float sign : {1.0F, -1.0F}) {
      const Inputs same(kernels, std::vector<float>(kCols, sign), kCols);
      std::vector<float> out(kTileRows);
      kernels.matmul({&extreme.packed, &same.view(), 0, 1, 0, 1, out.data(), kTileRows, false});
      for (std::size_t n = 0; n < kTileRows; ++n) {
        double sum = 0;
        double magnitude = 0;
        for (const float weight : extreme.row(n)) {
          sum += sign * weight;
          magnitude += std::abs(weight);
        }
        // A block's offset cancels much of its products.
        ASSERT_NEAR(out[n], sum, 1e-5 * (magnitude + 10)) << int{pattern};
      }
    }
  }
}

TEST(Matmul, InstructionSetsAgree) {
  for (const GgmlType type : kPackableTypes) {
    const PackedRows weights(type, 32, kCols, 9);
    std::vector<float> first;
    for (const Isa isa : supported_isas()) {
      const CpuKernels& kernels = cpu_kernels(isa);
      const Inputs inputs(kernels, random_values(kCols, 10), kCols);
      std::vector<float> out(32);
      kernels.matmul({&weights.packed, &inputs.view(), 0, 2, 0, 1, out.data(), 32, false});
      if (first.empty())
        first = out;
      for (std::size_t n = 0; n < out.size(); ++n)
        EXPECT_NEAR(out[n], first[n], 1e-4) << to_string(isa) << " " << type_name(type);
    }
  }
}

}  // namespace
}  // namespace dormouse::kernels

#include "tensor/matrix.h"

#include <gtest/gtest.h>

#include <vector>

#include "tensor/random_rows.h"

namespace dormouse {
namespace {

using format::GgmlType;

// A block whose packed 4-bit values are 0, 1, 2, ... 15 in the low halves and 15, 14, ... in the
// high ones.
std::vector<std::byte> block_with(std::vector<std::uint16_t> halves, std::uint32_t high_bits,
                                  bool has_high_bits) {
  std::vector<std::byte> block(halves.size() * 2);
  std::memcpy(block.data(), halves.data(), block.size());
  if (has_high_bits) {
    block.resize(block.size() + 4);
    std::memcpy(block.data() + block.size() - 4, &high_bits, 4);
  }
  for (int j = 0; j < 16; ++j)
    block.push_back(static_cast<std::byte>(j | (15 - j) << 4));
  return block;
}

std::vector<float> values_of(GgmlType type, const std::vector<std::byte>& row, std::size_t cols) {
  std::vector<float> out(cols);
  dequantize_row(type, row.data(), cols, out.data());
  return out;
}

TEST(Dequantize, ReadsBlocksOfFourBits) {
  const std::uint16_t half = f16_from_f32(0.5F);
  const auto centred = values_of(GgmlType::kQ4_0, block_with({half}, 0, false), 32);
  const auto shifted =
      values_of(GgmlType::kQ4_1, block_with({half, f16_from_f32(-3.0F)}, 0, false), 32);
  for (int j = 0; j < 16; ++j) {
    EXPECT_EQ(centred[j], 0.5F * static_cast<float>(j - 8));
    EXPECT_EQ(centred[j + 16], 0.5F * static_cast<float>(15 - j - 8));
    EXPECT_EQ(shifted[j], 0.5F * static_cast<float>(j) - 3.0F);
    EXPECT_EQ(shifted[j + 16], 0.5F * static_cast<float>(15 - j) - 3.0F);
  }
}

TEST(Dequantize, ReadsTheFifthBitsOfABlock) {
  const auto values =
      values_of(GgmlType::kQ5_0, block_with({f16_from_f32(2.0F)}, 0x80000001U, true), 32);
  EXPECT_EQ(values[0], 2.0F * (0 + 16 - 16));
  EXPECT_EQ(values[1], 2.0F * (1 - 16));
  EXPECT_EQ(values[30], 2.0F * (1 - 16));
  EXPECT_EQ(values[31], 2.0F * (0 + 16 - 16));
}

TEST(Dequantize, ReadsBlocksOfSignedBytes) {
  std::vector<std::byte> block(34);
  const std::uint16_t scale = f16_from_f32(0.25F);
  std::memcpy(block.data(), &scale, 2);
  block[2] = std::byte{0x80};
  block[33] = std::byte{0x7f};
  const auto values = values_of(GgmlType::kQ8_0, block, 32);
  EXPECT_EQ(values[0], -32.0F);
  EXPECT_EQ(values[1], 0.0F);
  EXPECT_EQ(values[31], 31.75F);
}

TEST(Dequantize, ReadsPlainFloats) {
  const std::uint16_t f16[] = {f16_from_f32(1.5F), f16_from_f32(-2.0F)};
  const std::uint16_t bf16[] = {0x3f80, 0xc000};
  const float f32[] = {0.1F, -7.0F};
  const auto row = [](const auto& values) {
    std::vector<std::byte> bytes(sizeof values);
    std::memcpy(bytes.data(), values, sizeof values);
    return bytes;
  };
  EXPECT_EQ(values_of(GgmlType::kF16, row(f16), 2), (std::vector<float>{1.5F, -2.0F}));
  EXPECT_EQ(values_of(GgmlType::kBF16, row(bf16), 2), (std::vector<float>{1.0F, -2.0F}));
  EXPECT_EQ(values_of(GgmlType::kF32, row(f32), 2), (std::vector<float>{0.1F, -7.0F}));
}

TEST(PackedMatrix, CountsWholeTilesOnly) {
  EXPECT_EQ((PackedMatrix{PackedForm::kU4, 17, 64, nullptr}.bytes()), 2U * 2 * 320);
  EXPECT_EQ((PackedMatrix{PackedForm::kS8, 16, 32, nullptr}.bytes()), 544U);
  EXPECT_EQ((PackedMatrix{PackedForm::kBF16, 1, 10, nullptr}.bytes()), 16U * 10 * 2);
  EXPECT_EQ((PackedMatrix{PackedForm::kF32, 33, 10, nullptr}.bytes()), 48U * 10 * 4);
}

}  // namespace
}  // namespace dormouse

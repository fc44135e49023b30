#include "kernels/cpu/pack.h"

#include <gtest/gtest.h>

#include "kernels/cpu/packed_rows.h"

namespace dormouse::kernels {
namespace {

using format::GgmlType;

TEST(Pack, AnUnpackedRowEqualsItsDirectDequantisation) {
  for (const GgmlType type : kPackableTypes)
    for (const std::uint32_t rows : {1U, 16U, 37U}) {
      const PackedRows matrix(type, rows, 96, rows);
      for (std::size_t r = 0; r < rows; ++r) {
        std::vector<float> row(96);
        unpack_row(matrix.packed, r, row.data());
        EXPECT_EQ(row, matrix.row(r)) << type_name(type) << " row " << r;
      }
    }
}

TEST(Pack, WritesEveryByteAndFillsTheLastTileWithZeros) {
  for (const GgmlType type : kPackableTypes) {
    const auto bytes = random_rows(type, 19, 64, 3);
    const PackedRows clean(type, 19, 64, bytes, std::byte{0});
    const PackedRows dirty(type, 19, 64, bytes, std::byte{0xff});
    EXPECT_EQ(clean.packed_bytes, dirty.packed_bytes) << type_name(type);
    PackedMatrix whole = clean.packed;
    whole.rows = 32;
    std::vector<float> row(64);
    for (std::size_t r = 19; r < 32; ++r) {
      unpack_row(whole, r, row.data());
      EXPECT_EQ(row, std::vector<float>(64, 0.0F)) << type_name(type);
    }
  }
}

TEST(Pack, RefusesTypesThatNoKernelTakes) {
  EXPECT_FALSE(packed_form(GgmlType::kQ4_K));
  EXPECT_FALSE(packed_form(GgmlType::kQ6_K));
  EXPECT_FALSE(packed_form(GgmlType::kQ5_1));
  EXPECT_EQ(packed_form(GgmlType::kQ4_0), PackedForm::kU4);
  EXPECT_EQ(packed_form(GgmlType::kQ5_0), PackedForm::kS8);
}

}  // namespace
}  // namespace dormouse::kernels

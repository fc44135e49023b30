// Brings matrices from the layout of a model file into the packed layout of tensor/matrix.h and
// back again.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "tensor/matrix.h"

namespace dormouse::kernels {

// How a type is packed; empty for a type that no kernel takes.
std::optional<PackedForm> packed_form(format::GgmlType type);

// Writes the tile whose r-th row is rows[r], `cols` values of `type`; null is a row of zeros. Every
// byte of the tile is written, so equal input gives equal bytes. Q4_0 and Q5_0 store an offset of 8
// or 16 steps: exact, as -8 * scale in f16, or within the signed byte.
void pack_tile(format::GgmlType type, std::span<const std::byte* const, kTileRows> rows,
               std::size_t cols, std::byte* tile);

// Writes one row of a packed matrix as floats.
void unpack_row(const PackedMatrix& matrix, std::size_t row, float* out);

}  // namespace dormouse::kernels

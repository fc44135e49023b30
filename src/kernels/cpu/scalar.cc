#include <immintrin.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/tables.h"
#include "tensor/half.h"

namespace dormouse::kernels {
namespace {

using V = float;
inline constexpr std::size_t kWidth = 1;
inline constexpr int kUnroll = 1;
inline constexpr std::size_t kMatmulRows = 1;  // worked on together
inline constexpr std::size_t kDenseTiles = 1;  // of one row
inline constexpr std::size_t kAttentionRows = 1;

inline V load(const float* from) {
  return *from;
}
inline void store(float* to, V x) {
  *to = x;
}
inline V load_f16(const std::uint16_t* from) {
  return f32_from_f16(*from);
}
inline V load_bf16(const std::uint16_t* from) {
  return f32_from_bf16(*from);
}
inline void store_f16(std::uint16_t* to, V x) {
  *to = f16_from_f32(x);
}
inline V set1(float x) {
  return x;
}
inline V add(V a, V b) {
  return a + b;
}
inline V sub(V a, V b) {
  return a - b;
}
inline V mul(V a, V b) {
  return a * b;
}
inline V div(V a, V b) {
  return a / b;
}
// Two roundings: fast without the instruction.
inline V fma(V a, V b, V c) {
  return a * b + c;
}
inline V maximum(V a, V b) {
  return a > b ? a : b;
}
inline V minimum(V a, V b) {
  return a < b ? a : b;
}
inline V absolute(V x) {
  return x < 0 ? -x : x;
}
inline V round_even(V x) {
  return static_cast<float>(_mm_cvtss_si32(_mm_set_ss(x)));
}
inline V pow2(V n) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<int>(n) + 127) << 23);
}
inline V zero_below(V value, V x, float limit) {
  return x < limit ? 0.0F : value;
}
inline float first(V x) {
  return x;
}
inline float reduce_add(V x) {
  return x;
}
inline float reduce_max(V x) {
  return x;
}

// Rounds values * inverse of one block and returns the sum of the results.
inline int quantize_block(const float* values, float inverse, std::int8_t* quants) {
  int sum = 0;
  for (std::size_t i = 0; i < kQuantBlock; ++i) {
    const int q = _mm_cvtss_si32(_mm_set_ss(values[i] * inverse));
    quants[i] = static_cast<std::int8_t>(q);
    sum += q;
  }
  return sum;
}

// The products of a tile's rows with one row of activations.
inline void block_dot(const U4Block& block, const std::int8_t* x, int (&sums)[kTileRows]) {
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t r = 0; r < kTileRows; ++r)
      for (std::size_t j = 0; j < 4; ++j) {
        const int byte = block.quants[64 * i + 4 * r + j];
        sums[r] += (byte & 15) * x[8 * i + j] + (byte >> 4) * x[8 * i + 4 + j];
      }
}
inline void block_dot(const S8Block& block, const std::int8_t* x, int (&sums)[kTileRows]) {
  for (std::size_t g = 0; g < 8; ++g)
    for (std::size_t r = 0; r < kTileRows; ++r)
      for (std::size_t j = 0; j < 4; ++j)
        sums[r] += block.quants[64 * g + 4 * r + j] * x[4 * g + j];
}

inline float minimum_of(const U4Block& block, std::size_t r) {
  return f32_from_f16(block.minimum[r]);
}
inline float minimum_of(const S8Block&, std::size_t) {
  return 0;
}

template <std::size_t kRows, class Block>
inline void quant_tile(const Block* blocks, const Activations& x, std::size_t row, float* out) {
  const std::size_t count = x.cols / kQuantBlock;
  for (std::size_t i = 0; i < kRows * kTileRows; ++i)
    out[i] = 0;
  for (std::size_t b = 0; b < count; ++b)
    for (std::size_t m = 0; m < kRows; ++m) {
      int sums[kTileRows] = {};
      block_dot(blocks[b], x.quants + (row + m) * x.cols + b * kQuantBlock, sums);
      const std::size_t at = (row + m) * count + b;
      for (std::size_t r = 0; r < kTileRows; ++r) {
        const float scaled = static_cast<float>(sums[r]) * f32_from_f16(blocks[b].scale[r]);
        float& total = out[m * kTileRows + r];
        total = scaled * x.scales[at] + total;
        total = minimum_of(blocks[b], r) * x.sums[at] + total;
      }
    }
}

// Each needs the one before.
// clang-format off
#include "kernels/cpu/rowwise.inc"
#include "kernels/cpu/matmul.inc"
#include "kernels/cpu/attention.inc"
// clang-format on

}  // namespace

const CpuKernels kScalarKernels = {Isa::kScalar, matmul, quantize, rms_norm,
                                   rotate,       swiglu, append,   attend};

}  // namespace dormouse::kernels

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/tables.h"

// GCC 12 takes the undefined operands inside of its own intrinsics for ours.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

// From here on only our own code: an inline function of a library compiled here would reach
// processors that lack these instructions.
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

namespace dormouse::kernels {
namespace {

using V = __m512;
inline constexpr std::size_t kWidth = 16;
inline constexpr int kUnroll = 16;
inline constexpr std::size_t kMatmulRows = 8;  // worked on together
inline constexpr std::size_t kDenseTiles = 4;  // of one row
inline constexpr std::size_t kAttentionRows = 8;

inline V load(const float* from) {
  return _mm512_loadu_ps(from);
}
inline void store(float* to, V x) {
  _mm512_storeu_ps(to, x);
}
inline V load_f16(const std::uint16_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
inline V load_bf16(const std::uint16_t* from) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
inline void store_f16(std::uint16_t* to, V x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline V set1(float x) {
  return _mm512_set1_ps(x);
}
inline V add(V a, V b) {
  return _mm512_add_ps(a, b);
}
inline V sub(V a, V b) {
  return _mm512_sub_ps(a, b);
}
inline V mul(V a, V b) {
  return _mm512_mul_ps(a, b);
}
inline V div(V a, V b) {
  return _mm512_div_ps(a, b);
}
inline V fma(V a, V b, V c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline V maximum(V a, V b) {
  return _mm512_max_ps(a, b);
}
inline V minimum(V a, V b) {
  return _mm512_min_ps(a, b);
}
inline V absolute(V x) {
  return _mm512_abs_ps(x);
}
inline V round_even(V x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline V pow2(V n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
  return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
}
inline V zero_below(V value, V x, float limit) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, set1(limit), _CMP_NLT_UQ), value);
}
inline float first(V x) {
  return _mm512_cvtss_f32(x);
}
inline float reduce_add(V x) {
  return _mm512_reduce_add_ps(x);
}
inline float reduce_max(V x) {
  return _mm512_reduce_max_ps(x);
}

// Rounds values * inverse of one block and returns the sum of the results.
inline int quantize_block(const float* values, float inverse, std::int8_t* quants) {
  const __m512i low = _mm512_cvtps_epi32(mul(load(values), set1(inverse)));
  const __m512i high = _mm512_cvtps_epi32(mul(load(values + 16), set1(inverse)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(quants), _mm512_cvtsepi32_epi8(low));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(quants + 16), _mm512_cvtsepi32_epi8(high));
  return _mm512_reduce_add_epi32(_mm512_add_epi32(low, high));
}

inline __m512i broadcast_four(const std::int8_t* quants) {
  std::int32_t four;
  std::memcpy(&four, quants, 4);
  return _mm512_set1_epi32(four);
}

// The products of a tile's 16 rows and 32 columns, in 32 bits.
template <std::size_t kRows>
inline void block_dot(const U4Block& block, const std::int8_t* x, std::size_t cols,
                      __m512i (&sums)[kRows]) {
  const __m512i low = _mm512_set1_epi8(15);
  __m512i odd_sums[kRows];
#pragma GCC unroll 8
  for (std::size_t m = 0; m < kRows; ++m)
    sums[m] = odd_sums[m] = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 4; ++i) {
    const __m512i bytes = _mm512_loadu_si512(block.quants + 64 * i);
    const __m512i even = _mm512_and_si512(bytes, low);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), low);
#pragma GCC unroll 8
    for (std::size_t m = 0; m < kRows; ++m) {
      const std::int8_t* eight = x + m * cols + 8 * i;
      sums[m] = _mm512_dpbusd_epi32(sums[m], even, broadcast_four(eight));
      odd_sums[m] = _mm512_dpbusd_epi32(odd_sums[m], odd, broadcast_four(eight + 4));
    }
  }
#pragma GCC unroll 8
  for (std::size_t m = 0; m < kRows; ++m)
    sums[m] = _mm512_add_epi32(sums[m], odd_sums[m]);
}

// vpdpbusd wants one unsigned side: x + 128, for which 128 times the sum of the weights is taken
// off.
template <std::size_t kRows>
inline void block_dot(const S8Block& block, const std::int8_t* x, std::size_t cols,
                      __m512i (&sums)[kRows]) {
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(0x80));
  __m512i excess = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (std::size_t m = 0; m < kRows; ++m)
    sums[m] = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (std::size_t g = 0; g < 8; ++g) {
    const __m512i w = _mm512_loadu_si512(block.quants + 64 * g);
    excess = _mm512_dpbusd_epi32(excess, offset, w);
#pragma GCC unroll 8
    for (std::size_t m = 0; m < kRows; ++m) {
      const __m512i four = _mm512_xor_si512(broadcast_four(x + m * cols + 4 * g), offset);
      sums[m] = _mm512_dpbusd_epi32(sums[m], four, w);
    }
  }
#pragma GCC unroll 8
  for (std::size_t m = 0; m < kRows; ++m)
    sums[m] = _mm512_sub_epi32(sums[m], excess);
}

inline V add_minimum(const U4Block& block, float sum, V total) {
  return fma(load_f16(block.minimum), set1(sum), total);
}
inline V add_minimum(const S8Block&, float, V total) {
  return total;
}

// Weights are read once from memory, across pages at which the processor's own prefetching stops.
template <class Block>
inline void prefetch(const Block* block) {
  const char* ahead = reinterpret_cast<const char*>(block) + 4096;
  for (std::size_t line = 0; line < sizeof(Block); line += 64)
    _mm_prefetch(ahead + line, _MM_HINT_T0);
}

template <std::size_t kRows, class Block>
inline void quant_tile(const Block* blocks, const Activations& x, std::size_t row, float* out) {
  const std::size_t count = x.cols / kQuantBlock;
  const float* scales = x.scales + row * count;
  const float* minimum_sums = x.sums + row * count;
  V totals[kRows];
  for (V& m : totals)
    m = set1(0.0F);
  for (std::size_t b = 0; b < count; ++b) {
    __m512i sums[kRows];
    prefetch(blocks + b);
    block_dot<kRows>(blocks[b], x.quants + row * x.cols + b * kQuantBlock, x.cols, sums);
    const V scale = load_f16(blocks[b].scale);
#pragma GCC unroll 8
    for (std::size_t m = 0; m < kRows; ++m) {
      const V scaled = mul(_mm512_cvtepi32_ps(sums[m]), scale);
      totals[m] = fma(scaled, set1(scales[m * count + b]), totals[m]);
      totals[m] = add_minimum(blocks[b], minimum_sums[m * count + b], totals[m]);
    }
  }
  for (std::size_t m = 0; m < kRows; ++m)
    store(out + m * kTileRows, totals[m]);
}

// Each needs the one before.
// clang-format off
#include "kernels/cpu/rowwise.inc"
#include "kernels/cpu/matmul.inc"
#include "kernels/cpu/attention.inc"
// clang-format on

}  // namespace

const CpuKernels kAvx512VnniKernels = {Isa::kAvx512Vnni, matmul, quantize, rms_norm,
                                       rotate,           swiglu, append,   attend};

}  // namespace dormouse::kernels

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/tables.h"

// From here on only our own code: an inline function of a library compiled here would reach
// processors that lack these instructions.
#pragma GCC target("avx2,fma,f16c")

namespace dormouse::kernels {
namespace {

using V = __m256;
inline constexpr std::size_t kWidth = 8;
inline constexpr int kUnroll = 16;
inline constexpr std::size_t kMatmulRows = 4;  // worked on together
inline constexpr std::size_t kDenseTiles = 4;  // of one row
inline constexpr std::size_t kAttentionRows = 6;

inline V load(const float* from) {
  return _mm256_loadu_ps(from);
}
inline void store(float* to, V x) {
  _mm256_storeu_ps(to, x);
}
inline V load_f16(const std::uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline V load_bf16(const std::uint16_t* from) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline void store_f16(std::uint16_t* to, V x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline V set1(float x) {
  return _mm256_set1_ps(x);
}
inline V add(V a, V b) {
  return _mm256_add_ps(a, b);
}
inline V sub(V a, V b) {
  return _mm256_sub_ps(a, b);
}
inline V mul(V a, V b) {
  return _mm256_mul_ps(a, b);
}
inline V div(V a, V b) {
  return _mm256_div_ps(a, b);
}
inline V fma(V a, V b, V c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline V maximum(V a, V b) {
  return _mm256_max_ps(a, b);
}
inline V minimum(V a, V b) {
  return _mm256_min_ps(a, b);
}
inline V absolute(V x) {
  return _mm256_andnot_ps(set1(-0.0F), x);
}
inline V round_even(V x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline V pow2(V n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
inline V zero_below(V value, V x, float limit) {
  return _mm256_andnot_ps(_mm256_cmp_ps(x, set1(limit), _CMP_LT_OQ), value);
}
inline float first(V x) {
  return _mm256_cvtss_f32(x);
}
inline float reduce_add(V x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
inline float reduce_max(V x) {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

// Rounds values * inverse of one block and returns the sum of the results.
inline int quantize_block(const float* values, float inverse, std::int8_t* quants) {
  __m256i q[4];
  for (std::size_t i = 0; i < 4; ++i)
    q[i] = _mm256_cvtps_epi32(mul(load(values + 8 * i), set1(inverse)));
  const __m256i total =
      _mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
  const __m256i packed =
      _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(quants),
                      _mm256_permutevar8x32_epi32(packed, order));
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

inline __m256i load_bytes(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
inline __m256i broadcast_four(const std::int8_t* quants) {
  std::int32_t four;
  std::memcpy(&four, quants, 4);
  return _mm256_set1_epi32(four);
}

// GCC would otherwise put off the additions and keep what is to be added in memory.
inline void add_now(__m256i& sum) {
  asm("" : "+x"(sum));
}

// The products of 8 rows (one half of a tile) and 32 columns, in 32 bits.
// Eight steps of two products of at most 15 * 127 fit 16 bits.
template <std::size_t kRows>
inline void block_dot(const U4Block& block, std::size_t half, const std::int8_t* x,
                      std::size_t cols, __m256i (&sums)[kRows]) {
  const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 4
  for (std::size_t i = 0; i < 4; ++i) {
    const __m256i bytes = load_bytes(block.quants + 64 * i + 32 * half);
    const __m256i even = _mm256_and_si256(bytes, low);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low);
#pragma GCC unroll 8
    for (std::size_t m = 0; m < kRows; ++m) {
      const std::int8_t* eight = x + m * cols + 8 * i;
      const __m256i both = _mm256_add_epi16(_mm256_maddubs_epi16(even, broadcast_four(eight)),
                                            _mm256_maddubs_epi16(odd, broadcast_four(eight + 4)));
      sums[m] = i == 0 ? both : _mm256_add_epi16(sums[m], both);
      add_now(sums[m]);
    }
  }
#pragma GCC unroll 8
  for (std::size_t m = 0; m < kRows; ++m)
    sums[m] = _mm256_madd_epi16(sums[m], _mm256_set1_epi16(1));
}

// |w| times x with the sign of w: two products of at most 128 * 127 fit 16 bits.
template <std::size_t kRows>
inline void block_dot(const S8Block& block, std::size_t half, const std::int8_t* x,
                      std::size_t cols, __m256i (&sums)[kRows]) {
#pragma GCC unroll 8
  for (std::size_t g = 0; g < 8; ++g) {
    const __m256i w = load_bytes(block.quants + 64 * g + 32 * half);
    const __m256i magnitude = _mm256_abs_epi8(w);
#pragma GCC unroll 8
    for (std::size_t m = 0; m < kRows; ++m) {
      const __m256i four = _mm256_sign_epi8(broadcast_four(x + m * cols + 4 * g), w);
      const __m256i pairs =
          _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, four), _mm256_set1_epi16(1));
      sums[m] = g == 0 ? pairs : _mm256_add_epi32(sums[m], pairs);
      add_now(sums[m]);
    }
  }
}

inline V add_minimum(const U4Block& block, std::size_t half, float sum, V total) {
  return fma(load_f16(block.minimum + 8 * half), set1(sum), total);
}
inline V add_minimum(const S8Block&, std::size_t, float, V total) {
  return total;
}

// Weights are read once from memory, across pages at which the processor's own prefetching stops.
template <class Block>
inline void prefetch(const Block* block) {
  const char* ahead = reinterpret_cast<const char*>(block) + 4096;
  for (std::size_t line = 0; line < sizeof(Block); line += 64)
    _mm_prefetch(ahead + line, _MM_HINT_T0);
}

// kHalves of a tile from `half` on. Few rows take both at once, so that weights stream through
// once.
template <std::size_t kRows, std::size_t kHalves, class Block>
inline void quant_halves(const Block* blocks, const Activations& x, std::size_t row,
                         std::size_t half, float* out) {
  const std::size_t count = x.cols / kQuantBlock;
  const float* scales = x.scales + row * count;
  const float* minimum_sums = x.sums + row * count;
  V totals[kHalves][kRows];
  for (auto& h : totals)
    for (V& m : h)
      m = set1(0.0F);
  for (std::size_t b = 0; b < count; ++b) {
    const std::int8_t* quants = x.quants + row * x.cols + b * kQuantBlock;
    if (half == 0)
      prefetch(blocks + b);
#pragma GCC unroll 2
    for (std::size_t h = 0; h < kHalves; ++h) {
      __m256i sums[kRows];
      block_dot<kRows>(blocks[b], half + h, quants, x.cols, sums);
      const V scale = load_f16(blocks[b].scale + 8 * (half + h));
#pragma GCC unroll 8
      for (std::size_t m = 0; m < kRows; ++m) {
        const V scaled = mul(_mm256_cvtepi32_ps(sums[m]), scale);
        totals[h][m] = fma(scaled, set1(scales[m * count + b]), totals[h][m]);
        totals[h][m] = add_minimum(blocks[b], half + h, minimum_sums[m * count + b], totals[h][m]);
      }
    }
  }
  for (std::size_t h = 0; h < kHalves; ++h)
    for (std::size_t m = 0; m < kRows; ++m)
      store(out + m * kTileRows + 8 * (half + h), totals[h][m]);
}

template <std::size_t kRows, class Block>
inline void quant_tile(const Block* blocks, const Activations& x, std::size_t row, float* out) {
  if constexpr (kRows <= 2) {
    quant_halves<kRows, 2>(blocks, x, row, 0, out);
  } else {
    quant_halves<kRows, 1>(blocks, x, row, 0, out);
    quant_halves<kRows, 1>(blocks, x, row, 1, out);
  }
}

// Each needs the one before.
// clang-format off
#include "kernels/cpu/rowwise.inc"
#include "kernels/cpu/matmul.inc"
#include "kernels/cpu/attention.inc"
// clang-format on

}  // namespace

const CpuKernels kAvx2Kernels = {Isa::kAvx2, matmul, quantize, rms_norm,
                                 rotate,     swiglu, append,   attend};

}  // namespace dormouse::kernels

// The arithmetic of a transformer on the CPU: a table of functions for each instruction set.
//
// Owns:    nothing; every function works on the caller's memory.
// Threads: any; callers split work by ranges of rows, tiles or heads.
// Order:   an output depends only on its own row of inputs, summed in one fixed order. Its bits
//          are the same whatever range it is computed in, and whatever stands beside it.
//          Instruction sets agree with each other to rounding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/isa.h"
#include "tensor/matrix.h"

namespace dormouse::kernels {

// Rows of `cols` values in the forms that matrices multiply: floats for dense ones; for quantized
// ones signed bytes in blocks of kQuantBlock,
//   value = scale * quant, sum = scale * (sum of the quants).
struct Activations {
  std::size_t cols = 0;
  float* values = nullptr;        // [rows][cols]; null if no matrix reads it
  std::int8_t* quants = nullptr;  // [rows][cols]; null likewise
  float* scales = nullptr;        // [rows][cols / kQuantBlock]
  float* sums = nullptr;          // [rows][cols / kQuantBlock]
};

// out[m][n] (+)= sum over k of weights[n][k] * inputs[m][k], for a range of m and of tiles of n.
struct Matmul {
  const PackedMatrix* weights = nullptr;
  const Activations* inputs = nullptr;
  std::size_t tile_begin = 0;
  std::size_t tile_end = 0;
  std::size_t row_begin = 0;
  std::size_t row_end = 0;
  float* out = nullptr;        // of row_begin and tile_begin's first row
  std::size_t out_stride = 0;  // floats from one m to the next
  bool accumulate = false;
};

// Where one kv head's keys and values of a layer lie; see kv_cache/layout.h.
struct KvHead {
  std::uint16_t* cache = nullptr;  // f16
  std::size_t block_stride = 0;    // elements from one block to the next
  std::size_t key_offset = 0;      // elements from a block's start to the head's keys
  std::size_t value_offset = 0;
  std::uint32_t block_size = 0;
  std::uint32_t head_dim = 0;  // a multiple of kQuantBlock
};

// Causal attention of `tokens` consecutive positions, for the query heads that share one kv head.
// Query (t, h) sees positions 0 to first_position + t, all of which are in the cache. Positions are
// merged in spans of kAttentionSpan that start at multiples of it (online softmax, Milakov and
// Gimelshein 2018), whatever the block size and the number of tokens.
struct Attention {
  KvHead kv;
  const std::uint32_t* block_table = nullptr;
  std::size_t first_position = 0;
  std::size_t tokens = 0;  // at most kAttentionTokens
  std::size_t heads = 0;
  const float* queries = nullptr;  // [tokens][heads][head_dim], already scaled
  std::size_t query_stride = 0;    // floats from one token to the next
  float* out = nullptr;
  std::size_t out_stride = 0;
  float* scratch = nullptr;  // attention_scratch_floats(heads, head_dim), aligned to 64 bytes
};
inline constexpr std::size_t kAttentionSpan = 64;
inline constexpr std::size_t kAttentionTokens = 16;
constexpr std::size_t attention_scratch_floats(std::size_t heads, std::size_t head_dim) {
  return kAttentionTokens * heads * (kAttentionSpan + 2 * head_dim + 2) + kTileRows * head_dim;
}

struct CpuKernels {
  Isa isa = Isa::kScalar;

  void (*matmul)(const Matmul& call) = nullptr;

  // Rounds one row of `cols` values to bytes; fills quants, scales and sums of that row.
  void (*quantize)(const float* values, std::size_t cols, std::int8_t* quants, float* scales,
                   float* sums) = nullptr;

  // out = in / sqrt(mean(in^2) + epsilon) * weight.
  void (*rms_norm)(const float* in, const float* weight, std::size_t size, float epsilon,
                   float* out) = nullptr;

  // Turns each pair (i, i + head_dim/2) by its angle, then scales.
  void (*rotate)(float* head, const float* cosines, const float* sines, std::size_t head_dim,
                 float scale) = nullptr;

  // out = gate / (1 + exp(-gate)) * up.
  void (*swiglu)(const float* gate, const float* up, std::size_t size, float* out) = nullptr;

  // Writes one position's key and value.
  void (*append)(const KvHead& kv, std::uint32_t block, std::size_t position_in_block,
                 const float* key, const float* value) = nullptr;

  void (*attend)(const Attention& call) = nullptr;
};

// `isa` is one of supported_isas().
const CpuKernels& cpu_kernels(Isa isa);

}  // namespace dormouse::kernels

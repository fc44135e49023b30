// Plain quantisers for tests: floats to the bytes of a GGUF tensor type, by the definition of each
// format and without any of the kernels' code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "format/ggml_type.h"

namespace dormouse::testing {

// Nearest, ties to even; too large becomes infinity.
std::uint16_t to_f16(float value);
std::uint16_t to_bf16(float value);
float from_f16(std::uint16_t bits);

// `type` is F32, F16, BF16, Q8_0, Q4_0 or Q4_1; `values` are whole blocks.
std::vector<std::byte> quantize(format::GgmlType type, std::span<const float> values);

}  // namespace dormouse::testing

// Which instruction set the CPU kernels use.
#pragma once

#include <string_view>
#include <vector>

#include "dormouse/result.h"

namespace dormouse::kernels {

enum class Isa { kScalar, kAvx2, kAvx512Vnni };

inline constexpr const char* kIsaVariable = "DORMOUSE_KERNEL";  // of the environment

std::string_view to_string(Isa isa);  // "scalar", "avx2", "avx512vnni"

// What this processor can run, slowest first; kScalar always.
std::vector<Isa> supported_isas();

// The one named, or the fastest if `name` is empty.
// Errors: kInvalidArgument for a name that is none; kUnsupported if this processor lacks it.
Result<Isa> choose_isa(std::string_view name);

// choose_isa of what kIsaVariable says.
Result<Isa> choose_isa_from_environment();

}  // namespace dormouse::kernels

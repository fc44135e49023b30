#include "kernels/cpu/isa.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>

namespace dormouse::kernels {
namespace {

constexpr Isa kAll[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512Vnni};

bool supported(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case Isa::kAvx512Vnni:
      return supported(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  }
  return false;
}

}  // namespace

std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512Vnni:
      return "avx512vnni";
  }
  return "unknown";
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> found;
  std::copy_if(std::begin(kAll), std::end(kAll), std::back_inserter(found), supported);
  return found;
}

Result<Isa> choose_isa(std::string_view name) {
  if (name.empty())
    return supported_isas().back();
  const auto* isa = std::find_if(std::begin(kAll), std::end(kAll),
                                 [&](Isa each) { return to_string(each) == name; });
  if (isa == std::end(kAll))
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("unknown kernel '{}': use scalar, avx2 or avx512vnni", name), "kernel");
  if (!supported(*isa))
    return fail(ErrorCode::kUnsupported,
                fmt::format("kernel '{}' needs instructions that this processor lacks; the fastest "
                            "it can run is '{}'",
                            name, to_string(supported_isas().back())),
                "kernel");
  return *isa;
}

Result<Isa> choose_isa_from_environment() {
  const char* name = std::getenv(kIsaVariable);
  return choose_isa(name == nullptr ? "" : name);
}

}  // namespace dormouse::kernels

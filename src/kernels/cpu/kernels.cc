#include "kernels/cpu/kernels.h"

#include "base/check.h"
#include "kernels/cpu/tables.h"

namespace dormouse::kernels {

const CpuKernels& cpu_kernels(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return kScalarKernels;
    case Isa::kAvx2:
      return kAvx2Kernels;
    case Isa::kAvx512Vnni:
      return kAvx512VnniKernels;
  }
  DM_CHECK(false, "an instruction set has kernels");
}

}  // namespace dormouse::kernels

// The tables behind cpu_kernels(), one for each source file.
#pragma once

#include "kernels/cpu/kernels.h"

namespace dormouse::kernels {

extern const CpuKernels kScalarKernels;
extern const CpuKernels kAvx2Kernels;
extern const CpuKernels kAvx512VnniKernels;

}  // namespace dormouse::kernels

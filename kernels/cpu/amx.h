// bfloat16 products on the matrix units of an x86-64 core (AMX).
#pragma once

#include "gemm.h"

namespace hpmoe {

// Whether this machine has them and the system lets the process use them.
bool has_amx();

// c = a @ b for bfloat16 a and b, summed in float32, on a machine that has_amx(); a float32 c may be added to. Numbers
// below the smallest normal float32 count as zero there.
void amx_gemm(const Sizes& sizes, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate);

}  // namespace hpmoe

// Products of few rows with a matrix as it lies, which is read some whole rows at a time.
#pragma once

#include "gemm.h"

namespace hpmoe {

// c = a @ b, or c += a @ b; a and b lie as they are written, of one float dtype, bfloat16 where the core multiplies it; c is
// float32. For cores with AVX-512.
void multiply_by_row_groups(const Sizes& sizes, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate);

}  // namespace hpmoe

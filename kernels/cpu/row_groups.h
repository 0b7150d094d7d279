// Products of few rows with a matrix that is not transposed; they read the matrix in place, some whole rows at a time.
#pragma once

#include "gemm.h"

namespace hpmoe {

// Computes c = a @ b, or c += a @ b, on a core with AVX-512. a and b are not transposed and have one float dtype,
// bfloat16 only if the core multiplies it; c is float32.
void multiply_by_row_groups(const Sizes& sizes, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate);

}  // namespace hpmoe

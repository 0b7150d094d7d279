// Products of few rows with a whole matrix, which take about as long as reading the matrix.
#pragma once

#include "gemm.h"

namespace hpmoe {

// Largest number of rows that skinny_gemm() accepts for a dtype, with b transposed or not; 0 if the core has no AVX-512
// or does not multiply the dtype.
int64_t skinny_rows(Dtype dtype, bool transposed);

// Computes c = a @ b, or c += a @ b, if a has at most skinny_rows() rows; c is float32, a and b have one float dtype.
// Otherwise returns false, without effect.
bool skinny_gemm(const Sizes& sizes, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate);

}  // namespace hpmoe

// Products of few rows with a whole matrix, which take about as long as reading it.
#pragma once

#include "gemm.h"

namespace hpmoe {

// What few rows are of a dtype, with a matrix that is transposed or not: 0 where the core has no AVX-512, or does not
// multiply the dtype.
int64_t skinny_rows(Dtype dtype, bool transposed);

// c = a @ b, or c += a @ b, where a has few rows: c float32, a and b of one float dtype. Does nothing and returns false
// elsewhere.
bool skinny_gemm(const Sizes& sizes, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate);

}  // namespace hpmoe

// Products of a transposed matrix of few rows, whose sums have few terms, such as a weight gradient of few tokens. They
// take about as long as writing the result.
#pragma once

#include "gemm.h"

namespace hpmoe {

// Largest number of terms that few_terms_gemm() accepts for a dtype; 0 on a core with AMX.
int64_t few_terms(Dtype dtype);

// Computes c = a @ b, or c += a @ b for a float32 c, of any float dtypes. Returns false, without effect, unless a is
// transposed, b is not, and sums have few terms.
bool few_terms_gemm(const Sizes& sizes, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate);

}  // namespace hpmoe

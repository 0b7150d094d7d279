// Products of a transposed matrix of few rows, whose sums have few terms: a weight's gradient, which takes about as long as
// writing it.
#pragma once

#include "gemm.h"

namespace hpmoe {

// How many terms of a dtype are few: 0 beside matrix units.
int64_t few_terms(Dtype dtype);

// c = a @ b, or c += a @ b where c is float32, of any float dtypes, where a is transposed, b is not and the sums have few
// terms; does nothing and returns false elsewhere.
bool few_terms_gemm(const Sizes& sizes, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate);

}  // namespace hpmoe

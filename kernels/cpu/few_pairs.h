// Sums of products of bfloat16 with few terms, two of which the core multiplies at a time.
#pragma once

#include <cstdint>

#include "gemm.h"

namespace hpmoe {

constexpr int64_t kPairCols = 32;  // of a panel

bool multiplies_pairs();

// panels[panel][pair][kPairCols] = x[k, n], rows 2 i and 2 i + 1 of x in a pair, zeros past the last row and column.
void pack_pairs(const Matrix& x, int64_t k, int64_t n, float* panels);

// sums[kPairCols][num_panels * kPairCols] = a^T @ b, of one panel of a and all of b.
void multiply_pairs(int64_t num_pairs, int64_t num_panels, const float* a, const float* b, float* sums);

}  // namespace hpmoe

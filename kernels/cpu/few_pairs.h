// bfloat16 products with few terms: the core multiplies and adds two terms at a time.
#pragma once

#include <cstdint>

#include "gemm.h"

namespace hpmoe {

constexpr int64_t kPairCols = 32;  // columns of a panel

// Returns true if the core multiplies pairs of bfloat16 terms faster than converted terms.
bool multiplies_pairs();

// Sets panels[panel][pair][kPairCols] = x[k, n]; a pair holds rows 2 i and 2 i + 1 of x. Pads with zeros.
void pack_pairs(const Matrix& x, int64_t k, int64_t n, float* panels);

// Computes sums[kPairCols][num_panels * kPairCols] = a^T @ b for one panel of a and all panels of b.
void multiply_pairs(int64_t num_pairs, int64_t num_panels, const float* a, const float* b, float* sums);

}  // namespace hpmoe

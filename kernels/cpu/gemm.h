// The matrix product of a tile: by AMX or vectors, in the loops of this folder or, for more than a few rows, in those of
// a oneDNN library that the host names.
#pragma once

#include <cstdint>

#include "core/generated/structs.h"

namespace hpmoe {

// A row-major matrix, `ld` elements from row to row. `transposed` means that a product takes its transpose.
struct Matrix {
  char* data;
  Dtype dtype;
  int64_t ld;
  bool transposed = false;
  bool streamed = false;  // written past the caches, for results that are not read soon
};

struct Sizes {
  int64_t m, n, k;
};

// Computes c[m, n] = a[m, k] @ b[k, n] for any float dtypes, summed in float32 in an order that depends only on the
// sizes. Adds to a float32 c if `accumulate`.
void gemm(const Sizes& sizes, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate = false);

int use_blas(const char* path);
// Allows or forbids AMX for products; uses_amx() returns true if products use AMX.
void use_amx(bool allowed);
bool uses_amx();
const char* gemm_name();

}  // namespace hpmoe

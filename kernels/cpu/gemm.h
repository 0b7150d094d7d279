// The one place a tile's matrix product comes from: the matrix units of the core, or vectors, in our own loops or, but for
// few rows, in those of a oneDNN library the host names.
#pragma once

#include <cstdint>

#include "core/generated/structs.h"

namespace hpmoe {

// Row-major, `ld` elements from row to row; `transposed` where a product takes it so.
struct Matrix {
  char* data;
  Dtype dtype;
  int64_t ld;
  bool transposed = false;
  bool streamed = false;  // written past the caches, for nobody reads it soon
};

struct Sizes {
  int64_t m, n, k;
};

// c[m, n] = a[m, k] @ b[k, n], of any float dtypes; summed in float32 in an order that depends on the sizes alone.
// A float32 c may be added to instead.
void gemm(const Sizes& sizes, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate = false);

int use_blas(const char* path);
// Whether products may use the matrix units of the core, and whether they do.
void use_amx(bool allowed);
bool uses_amx();
const char* gemm_name();

}  // namespace hpmoe

// The one place a tile's matrix product comes from: our own loop, or dnnl_sgemm out of a library the host names.
#pragma once

#include <cstdint>

namespace hpmoe {

// c[m, n] = op(a)[m, k] @ op(b)[k, n]; row-major, leading dimensions in elements, op(x) = x^T where transposed.
struct Gemm {
  bool transpose_a, transpose_b;
  int64_t m, n, k, lda, ldb, ldc;
};

void gemm(const Gemm& shape, const float* a, const float* b, float* c);

int use_blas(const char* path);
const char* gemm_name();

}  // namespace hpmoe

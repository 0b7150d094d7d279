#include "gemm.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "multiversion.h"

namespace hpmoe {
namespace {

using DnnlSgemm = int (*)(char, char, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*, int64_t,
                          float, float*, int64_t);

std::atomic<DnnlSgemm> g_dnnl{nullptr};

// Register tile MR x NR, cache blocks MC x KC of a and KC x NC of b, both packed in panels.
constexpr int64_t MR = 6, NR = 16, MC = 96, KC = 256, NC = 512;
typedef float Lanes __attribute__((vector_size(NR * sizeof(float)), aligned(sizeof(float))));

// c[0:rows, 0:cols] += a panel [kc, MR] @ b panel [kc, NR]
HPMOE_MULTIVERSION
void multiply_panels(int64_t kc, const float* a, const float* b, float* c, int64_t ldc, int64_t rows, int64_t cols) {
  Lanes sum[MR] = {};
  for (int64_t k = 0; k < kc; ++k, a += MR, b += NR) {
    const Lanes line = *reinterpret_cast<const Lanes*>(b);
    for (int i = 0; i < MR; ++i) sum[i] += line * a[i];
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) c[i * ldc + j] += sum[i][j];
  }
}

// Panels of `width` lines side by side, padded with zeros: packed[panel][k][line].
void pack(const float* x, int64_t line_stride, int64_t k_stride, int64_t lines, int64_t kc, int64_t width,
          float* packed) {
  for (int64_t first = 0; first < lines; first += width, packed += width * kc) {
    const int64_t count = std::min(width, lines - first);
    const float* from = x + first * line_stride;
    for (int64_t k = 0; k < kc; ++k) {
      for (int64_t i = 0; i < count; ++i) packed[k * width + i] = from[i * line_stride + k * k_stride];
      for (int64_t i = count; i < width; ++i) packed[k * width + i] = 0.0f;
    }
  }
}

void own_gemm(const Gemm& s, const float* a, const float* b, float* c) {
  thread_local std::vector<float> packed_a(MC * KC), packed_b(NC * KC + NC);
  const int64_t a_row = s.transpose_a ? 1 : s.lda, a_k = s.transpose_a ? s.lda : 1;
  const int64_t b_col = s.transpose_b ? s.ldb : 1, b_k = s.transpose_b ? 1 : s.ldb;
  for (int64_t i = 0; i < s.m; ++i) std::fill_n(c + i * s.ldc, s.n, 0.0f);
  for (int64_t j0 = 0; j0 < s.n; j0 += NC) {
    const int64_t nc = std::min(NC, s.n - j0);
    for (int64_t k0 = 0; k0 < s.k; k0 += KC) {
      const int64_t kc = std::min(KC, s.k - k0);
      pack(b + j0 * b_col + k0 * b_k, b_col, b_k, nc, kc, NR, packed_b.data());
      for (int64_t i0 = 0; i0 < s.m; i0 += MC) {
        const int64_t mc = std::min(MC, s.m - i0);
        pack(a + i0 * a_row + k0 * a_k, a_row, a_k, mc, kc, MR, packed_a.data());
        for (int64_t j = 0; j < nc; j += NR) {
          for (int64_t i = 0; i < mc; i += MR) {
            multiply_panels(kc, packed_a.data() + i * kc, packed_b.data() + j * kc, c + (i0 + i) * s.ldc + j0 + j,
                            s.ldc, std::min(MR, mc - i), std::min(NR, nc - j));
          }
        }
      }
    }
  }
}

}  // namespace

void gemm(const Gemm& s, const float* a, const float* b, float* c) {
  if (s.m == 0 || s.n == 0) return;
  const DnnlSgemm dnnl = g_dnnl.load(std::memory_order_acquire);
  if (dnnl && s.k > 0) {
    const int failed = dnnl(s.transpose_a ? 'T' : 'N', s.transpose_b ? 'T' : 'N', s.m, s.n, s.k, 1.0f, a, s.lda, b,
                            s.ldb, 0.0f, c, s.ldc);
    if (!failed) return;
  }
  own_gemm(s, a, b, c);
}

int use_blas(const char* path) {
  if (!path) {
    g_dnnl.store(nullptr, std::memory_order_release);
    return 0;
  }
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);  // stays loaded: workers may be inside it
  if (!library) return 1;
  void* symbol = dlsym(library, "dnnl_sgemm");
  if (!symbol) return 2;
  g_dnnl.store(reinterpret_cast<DnnlSgemm>(symbol), std::memory_order_release);
  return 0;
}

const char* gemm_name() { return g_dnnl.load(std::memory_order_acquire) ? "dnnl_sgemm" : "own"; }

}  // namespace hpmoe

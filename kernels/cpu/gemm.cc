#include "gemm.h"

#include <dlfcn.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstring>

#include "amx.h"
#include "convert.h"
#include "few_pairs.h"
#include "few_terms.h"
#include "multiversion.h"
#include "scratch.h"
#include "signals_blocked.h"
#include "skinny_gemm.h"

namespace hpmoe {
namespace {

// The signatures of dnnl_sgemm(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc) and of its bfloat16
// counterpart. Both are row-major.
template <class Element>
using DnnlGemm = int (*)(char, char, int64_t, int64_t, int64_t, float, const Element*, int64_t, const Element*, int64_t,
                         float, float*, int64_t);

std::atomic<DnnlGemm<float>> g_sgemm{nullptr};
std::atomic<DnnlGemm<uint16_t>> g_bf16_gemm{nullptr};
std::atomic<bool> g_use_amx{has_amx()};

template <class Element>
bool dnnl_gemm(const std::atomic<DnnlGemm<Element>>& function, const Sizes& s, const Matrix& a, const Matrix& b,
               const Matrix& c, bool accumulate) {
  const DnnlGemm<Element> call = function.load(std::memory_order_acquire);
  if (!call) return false;
  const SignalsBlocked blocked;  // oneDNN's kernels move the stack pointer to the heap, where a signal handler must not run
  const auto letter = [](const Matrix& x) { return x.transposed ? 'T' : 'N'; };
  return call(letter(a), letter(b), s.m, s.n, s.k, 1.0f, reinterpret_cast<const Element*>(a.data), a.ld,
              reinterpret_cast<const Element*>(b.data), b.ld, accumulate ? 1.0f : 0.0f, reinterpret_cast<float*>(c.data),
              c.ld) == 0;
}

// Register tile MR x NR, and cache blocks MC x KC of a and KC x NC of b, both packed in panels.
constexpr int64_t MR = 6, NR = 16, MC = 96, KC = 256, NC = 512;
typedef float Lanes __attribute__((vector_size(NR * sizeof(float)), aligned(sizeof(float))));

// Computes c[0:rows, 0:cols] += panel of a [kc, MR] @ panel of b [kc, NR].
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

// Packs panels of `width` adjacent lines: packed[panel][k][line]. Pads with zeros.
void pack(const float* x, int64_t line_stride, int64_t k_stride, int64_t lines, int64_t kc, int64_t width, float* packed) {
  for (int64_t first = 0; first < lines; first += width, packed += width * kc) {
    const int64_t count = std::min(width, lines - first);
    const float* from = x + first * line_stride;
    for (int64_t k = 0; k < kc; ++k) {
      for (int64_t i = 0; i < count; ++i) packed[k * width + i] = from[i * line_stride + k * k_stride];
      for (int64_t i = count; i < width; ++i) packed[k * width + i] = 0.0f;
    }
  }
}

void own_gemm(const Sizes& s, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) {
  thread_local Scratch<float> scratch_a, scratch_b;
  float *const packed_a = scratch_a.at_least(MC * KC), *const packed_b = scratch_b.at_least(NC * KC);
  const int64_t a_row = a.transposed ? 1 : a.ld, a_k = a.transposed ? a.ld : 1;
  const int64_t b_col = b.transposed ? b.ld : 1, b_k = b.transposed ? 1 : b.ld;
  const float *const x = reinterpret_cast<const float*>(a.data), *const w = reinterpret_cast<const float*>(b.data);
  float* const out = reinterpret_cast<float*>(c.data);
  for (int64_t i = 0; i < s.m && !accumulate; ++i) std::fill_n(out + i * c.ld, s.n, 0.0f);
  for (int64_t j0 = 0; j0 < s.n; j0 += NC) {
    const int64_t nc = std::min(NC, s.n - j0);
    for (int64_t k0 = 0; k0 < s.k; k0 += KC) {
      const int64_t kc = std::min(KC, s.k - k0);
      pack(w + j0 * b_col + k0 * b_k, b_col, b_k, nc, kc, NR, packed_b);
      for (int64_t i0 = 0; i0 < s.m; i0 += MC) {
        const int64_t mc = std::min(MC, s.m - i0);
        pack(x + i0 * a_row + k0 * a_k, a_row, a_k, mc, kc, MR, packed_a);
        for (int64_t j = 0; j < nc; j += NR) {
          for (int64_t i = 0; i < mc; i += MR) {
            multiply_panels(kc, packed_a + i * kc, packed_b + j * kc, out + (i0 + i) * c.ld + j0 + j, c.ld,
                            std::min(MR, mc - i), std::min(NR, nc - j));
          }
        }
      }
    }
  }
}

void vector_gemm(const Sizes& s, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) {
  if (!dnnl_gemm(g_sgemm, s, a, b, c, accumulate)) own_gemm(s, a, b, c, accumulate);
}

void multiply_float32(const Sizes& s, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) {
  if (skinny_gemm(s, a, b, c, accumulate)) return;
  if (uses_amx()) return amx_float32_gemm(s, a, b, c, accumulate, vector_gemm);
  vector_gemm(s, a, b, c, accumulate);
}

// Returns the part [k0, k0 + kc) of x as float32: in place, or converted into scratch.
Matrix part_in_float32(const Matrix& x, bool k_is_row, int64_t lines, int64_t k0, int64_t kc, Scratch<float>& scratch) {
  const int64_t rows = k_is_row ? kc : lines, cols = k_is_row ? lines : kc;
  char* const data = x.data + k0 * (k_is_row ? x.ld : 1) * element_size(x.dtype);
  if (x.dtype == Dtype::FLOAT32) return {data, x.dtype, x.ld, x.transposed};
  float* const wide = scratch.at_least(rows * cols);
  for (int64_t i = 0; i < rows; ++i) {
    to_float32(x.dtype, data + i * x.ld * element_size(x.dtype), cols, wide + i * cols);
  }
  return {reinterpret_cast<char*>(wide), Dtype::FLOAT32, cols, x.transposed};
}

// Multiplies into a float32 c; converts a and b block by block.
void multiply_converted(const Sizes& s, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) {
  constexpr int64_t kBlock = 512;
  thread_local Scratch<float> wide_a, wide_b;
  const bool converts = a.dtype != Dtype::FLOAT32 || b.dtype != Dtype::FLOAT32;
  const int64_t block = converts ? kBlock : s.k;
  for (int64_t k0 = 0; k0 < s.k; k0 += block) {
    const int64_t kc = std::min(block, s.k - k0);
    multiply_float32({s.m, s.n, kc}, part_in_float32(a, a.transposed, s.m, k0, kc, wide_a),
                     part_in_float32(b, !b.transposed, s.n, k0, kc, wide_b), c, accumulate || k0 > 0);
  }
}

// Sets c to zero, which has the same bits in every dtype.
void clear(const Sizes& s, const Matrix& c) {
  const int64_t row_bytes = s.n * element_size(c.dtype);
  for (int64_t i = 0; i < s.m; ++i) {
    char* const row = c.data + i * c.ld * element_size(c.dtype);
    int64_t done = 0;
#if defined(__SSE2__)
    const bool streams = c.streamed && reinterpret_cast<uintptr_t>(row) % sizeof(__m128i) == 0;
    for (const auto width = static_cast<int64_t>(sizeof(__m128i)); streams && done + width <= row_bytes; done += width)
      _mm_stream_si128(reinterpret_cast<__m128i*>(row + done), _mm_setzero_si128());
#endif
    std::memset(row + done, 0, row_bytes - done);
  }
#if defined(__SSE2__)
  if (c.streamed) _mm_sfence();
#endif
}

}  // namespace

void gemm(const Sizes& s, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) {
  if (s.m == 0 || s.n == 0 || (s.k == 0 && accumulate)) return;
  if (s.k == 0) return clear(s, c);
  const bool both_bf16 = a.dtype == Dtype::BFLOAT16 && b.dtype == Dtype::BFLOAT16;
  const bool is_few = !a.transposed && s.m <= skinny_rows(a.dtype, b.transposed);
  if (both_bf16 && uses_amx() && !is_few) return amx_gemm(s, a, b, c, accumulate);
  if (few_terms_gemm(s, a, b, c, accumulate)) return;
  thread_local Scratch<float> sums;
  const bool narrows = c.dtype != Dtype::FLOAT32;
  float* const wide = narrows ? sums.at_least(s.m * s.n) : nullptr;
  const Matrix sum = narrows ? Matrix{reinterpret_cast<char*>(wide), Dtype::FLOAT32, s.n} : c;
  const bool is_done = skinny_gemm(s, a, b, sum, accumulate) ||
                       (both_bf16 && multiplies_pairs() && dnnl_gemm(g_bf16_gemm, s, a, b, sum, accumulate));
  if (!is_done) multiply_converted(s, a, b, sum, accumulate);
  for (int64_t i = 0; i < s.m && narrows; ++i) {
    from_float32(c.dtype, wide + i * s.n, s.n, c.data + i * c.ld * element_size(c.dtype));
  }
}

int use_blas(const char* path) {
  if (!path) {
    g_sgemm.store(nullptr, std::memory_order_release);
    g_bf16_gemm.store(nullptr, std::memory_order_release);
    return 0;
  }
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);  // stays loaded, because workers may be inside
  if (!library) return 1;
  void* sgemm = dlsym(library, "dnnl_sgemm");
  if (!sgemm) return 2;
  g_sgemm.store(reinterpret_cast<DnnlGemm<float>>(sgemm), std::memory_order_release);
  g_bf16_gemm.store(reinterpret_cast<DnnlGemm<uint16_t>>(dlsym(library, "dnnl_gemm_bf16bf16f32")),
                    std::memory_order_release);
  return 0;
}

void use_amx(bool allowed) { g_use_amx.store(allowed && has_amx(), std::memory_order_relaxed); }
bool uses_amx() { return g_use_amx.load(std::memory_order_relaxed); }

const char* gemm_name() { return g_sgemm.load(std::memory_order_acquire) ? "dnnl_sgemm" : "own"; }

}  // namespace hpmoe

#include "few_terms.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstring>

#include "convert.h"
#include "few_pairs.h"
#include "multiversion.h"
#include "scratch.h"

namespace hpmoe {
namespace {

// Rows and columns of sums in registers.
constexpr int64_t MR = 4, NR = 32;
typedef float Lanes __attribute__((vector_size(16 * sizeof(float))));

// Computes sums[MR, strips * NR] = a[k, MR]^T @ b, with b as [strip][k][NR].
HPMOE_MULTIVERSION
void multiply_rows(int64_t strips, int64_t k, const float* a, const float* b, float* sums) {
  for (int64_t j = 0; j < strips; ++j, b += k * NR) {
    Lanes sum[MR][2] = {};
    for (int64_t term = 0; term < k; ++term) {
      const Lanes* const line = reinterpret_cast<const Lanes*>(b + term * NR);
      for (int i = 0; i < MR; ++i) {
        sum[i][0] += line[0] * a[term * MR + i];
        sum[i][1] += line[1] * a[term * MR + i];
      }
    }
    for (int i = 0; i < MR; ++i) {
      Lanes* const to = reinterpret_cast<Lanes*>(sums + (i * strips + j) * NR);
      to[0] = sum[i][0];
      to[1] = sum[i][1];
    }
  }
}

// Sets panels[panel][k][width] = x[k, n] as float32. Pads with zeros.
void pack(const Matrix& x, int64_t k, int64_t n, int64_t width, float* line, float* panels) {
  for (int64_t term = 0; term < k; ++term) {
    to_float32(x.dtype, x.data + term * x.ld * element_size(x.dtype), n, line);
    for (int64_t j = 0; j < n; j += width) {
      float* const to = panels + j * k + term * width;
      std::fill(std::copy_n(line + j, std::min(width, n - j), to), to + width, 0.0f);
    }
  }
}

void copy(const char* from, int64_t bytes, [[maybe_unused]] bool streams, char* to) {
  int64_t done = 0;
#if defined(__SSE2__)
  for (const auto width = static_cast<int64_t>(sizeof(__m128i)); streams && done + width <= bytes; done += width)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + done), _mm_load_si128(reinterpret_cast<const __m128i*>(from + done)));
#endif
  std::memcpy(to + done, from + done, bytes - done);
}

// Stores a row of sums to c, or adds it. `narrow` is scratch for rounding if c is not float32.
void put_row(float* sums, float* narrow, int64_t n, const Matrix& c, int64_t row, bool accumulate) {
  char* const to = c.data + row * c.ld * element_size(c.dtype);
  const float* const before = reinterpret_cast<const float*>(to);
  for (int64_t j = 0; j < n && accumulate; ++j) sums[j] += before[j];
  const bool narrows = c.dtype != Dtype::FLOAT32;
  if (narrows) from_float32(c.dtype, sums, n, narrow);
  const bool streams = c.streamed && reinterpret_cast<uintptr_t>(to) % 16 == 0;
  copy(reinterpret_cast<const char*>(narrows ? narrow : sums), n * element_size(c.dtype), streams, to);
}

// Multiplies operands of any float dtypes as float32.
void multiply_dequantized(const Sizes& s, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) {
  thread_local Scratch<float> scratch;
  const int64_t m = (s.m + MR - 1) / MR * MR, n = (s.n + NR - 1) / NR * NR;
  float* const right = scratch.at_least((m + n) * s.k + MR * n + std::max(m, n));
  float *const sums = right + n * s.k, *const line = sums + MR * n, *const left = line + std::max(m, n);
  pack(a, s.k, s.m, MR, line, left);
  pack(b, s.k, s.n, NR, line, right);
  for (int64_t i = 0; i < s.m; i += MR) {
    multiply_rows(n / NR, s.k, left + i * s.k, right, sums);
    for (int64_t row = i; row < std::min(i + MR, s.m); ++row) put_row(sums + (row - i) * n, line, s.n, c, row, accumulate);
  }
}

void multiply_bfloat16(const Sizes& s, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) {
  thread_local Scratch<float> scratch;
  const int64_t pairs = (s.k + 1) / 2, panels = (s.n + kPairCols - 1) / kPairCols, n = panels * kPairCols;
  const int64_t m = (s.m + kPairCols - 1) / kPairCols * kPairCols;
  float* const right = scratch.at_least((m + n) * pairs + kPairCols * n + n);
  float *const left = right + n * pairs, *const sums = left + m * pairs, *const line = sums + kPairCols * n;
  pack_pairs(a, s.k, s.m, left);
  pack_pairs(b, s.k, s.n, right);
  for (int64_t i = 0; i < s.m; i += kPairCols) {
    multiply_pairs(pairs, panels, left + i * pairs, right, sums);
    for (int64_t row = i; row < std::min(i + kPairCols, s.m); ++row)
      put_row(sums + (row - i) * n, line, s.n, c, row, accumulate);
  }
}

}  // namespace

int64_t few_terms(Dtype dtype) {
  if (uses_amx()) return 0;
  return dtype == Dtype::BFLOAT16 && multiplies_pairs() ? 128 : 32;
}

bool few_terms_gemm(const Sizes& s, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) {
  const Dtype dtype = a.dtype == b.dtype ? a.dtype : Dtype::FLOAT32;
  if (!a.transposed || b.transposed || s.k > few_terms(dtype)) return false;
  const bool is_bfloat16 = dtype == Dtype::BFLOAT16 && multiplies_pairs();
  (is_bfloat16 ? multiply_bfloat16 : multiply_dequantized)(s, a, b, c, accumulate);
#if defined(__SSE2__)
  if (c.streamed) _mm_sfence();
#endif
  return true;
}

}  // namespace hpmoe

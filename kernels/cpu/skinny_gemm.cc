#include "skinny_gemm.h"

#include "terms.h"

#if defined(__x86_64__) && defined(__linux__)

#include <algorithm>
#include <utility>

#include "few_pairs.h"
#include "row_groups.h"
#include "scratch.h"

namespace hpmoe {
namespace {

// For float32 b on a core with AMX: a block is MR rows x NR columns over KC rows of b, as many rows as the core's
// prefetcher follows at a time. Prefetches the columns of the block after the next.
constexpr int64_t MR = 12, NR = 32, KC = 32, kAhead = 2 * NR;
// For a transposed b: a block is MR_DOT rows x NR_DOT columns, with 16 partial sums each, over KC_DOT lanes of k. a is
// packed, because its rows are often a power of two apart and L1 would not keep them.
constexpr int64_t MR_DOT = 6, NR_DOT = 4, KC_DOT = 1024;

// Returns the rows of a block, so that blocks of at most `most` rows divide m evenly.
constexpr int64_t even_block(int64_t m, int64_t most) {
  const int64_t blocks = (m + most - 1) / most;
  return (m + blocks - 1) / blocks;
}

// Computes c[kRows, cols] = a[kRows, kc] @ b[kc, cols], or adds it to c, with a as [kc][kRows] and cols <= NR.
template <int kRows>
HPMOE_AVX512 void multiply_strip(int64_t kc, const float* a, const float* b, int64_t ldb, int64_t cols, float* c,
                                 int64_t ldc, bool add) {
  const __mmask16 low = first(cols), high = first(cols - 16);
  __m512 sum[kRows][2];
  HPMOE_UNROLL for (int i = 0; i < kRows; ++i) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
  for (int64_t k = 0; k < kc; ++k, a += kRows, b += ldb) {
    _mm_prefetch(b + kAhead, _MM_HINT_T0);
    _mm_prefetch(b + kAhead + 16, _MM_HINT_T0);
    const __m512 left = _mm512_maskz_loadu_ps(low, b), right = _mm512_maskz_loadu_ps(high, b + 16);
    HPMOE_UNROLL for (int i = 0; i < kRows; ++i) {
      const __m512 factor = _mm512_set1_ps(a[i]);
      sum[i][0] = _mm512_fmadd_ps(factor, left, sum[i][0]);
      sum[i][1] = _mm512_fmadd_ps(factor, right, sum[i][1]);
    }
  }
  HPMOE_UNROLL for (int i = 0; i < kRows; ++i, c += ldc) {
    if (add) sum[i][0] = _mm512_add_ps(sum[i][0], _mm512_maskz_loadu_ps(low, c));
    if (add) sum[i][1] = _mm512_add_ps(sum[i][1], _mm512_maskz_loadu_ps(high, c + 16));
    _mm512_mask_storeu_ps(c, low, sum[i][0]);
    _mm512_mask_storeu_ps(c + 16, high, sum[i][1]);
  }
}

// Returns, in every 128 bits, four sums: the four lanes of each of four vectors.
HPMOE_AVX512 inline __m512 fold_four(const __m512* x) {
  __m512d half[2];
  for (int i = 0; i < 2; ++i) {
    const __m512 low = _mm512_maskz_unpacklo_ps(kAll, x[2 * i], x[2 * i + 1]);
    half[i] = _mm512_castps_pd(_mm512_add_ps(low, _mm512_maskz_unpackhi_ps(kAll, x[2 * i], x[2 * i + 1])));
  }
  const __m512d low = _mm512_maskz_unpacklo_pd(0xFF, half[0], half[1]),
                high = _mm512_maskz_unpackhi_pd(0xFF, half[0], half[1]);
  return _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
}

// Adds adjacent 128-bit parts of x, then those of y.
HPMOE_AVX512 inline __m512 fold_parts(__m512 x, __m512 y) {
  return _mm512_add_ps(_mm512_maskz_shuffle_f32x4(kAll, x, y, 0x88), _mm512_maskz_shuffle_f32x4(kAll, x, y, 0xDD));
}

// Returns the sums over the lanes of sum[row][col] for four rows, in order.
HPMOE_AVX512 inline __m512 sums_of(const __m512 (*sum)[NR_DOT]) {
  static_assert(NR_DOT == 4, "four sums fill 128 bits");
  return fold_parts(fold_parts(fold_four(sum[0]), fold_four(sum[1])), fold_parts(fold_four(sum[2]), fold_four(sum[3])));
}

// Computes c[kRows, cols] = a[kRows, k] @ b[cols, k]^T, or adds it to c, with a as [vector][kRows][16] and cols <=
// NR_DOT. Prefetches b + `ahead`.
template <class Terms, int kRows>
HPMOE_AVX512 void multiply_dots(int64_t k, const float* a, const typename Terms::Element* b, int64_t ldb, int64_t cols,
                                float* c, int64_t ldc, bool add, int64_t ahead) {
  const typename Terms::Element* line[NR_DOT];
  for (int64_t j = 0; j < NR_DOT; ++j) line[j] = b + std::min(j, cols - 1) * ldb;
  constexpr int kPadded = (kRows + 3) / 4 * 4;
  __m512 sum[kPadded][NR_DOT];
  HPMOE_UNROLL for (int i = 0; i < kPadded; ++i) HPMOE_UNROLL for (int j = 0; j < NR_DOT; ++j)
      sum[i][j] = _mm512_setzero_ps();
  for (int64_t at = 0; at < k; at += 16 * Terms::kTerms, a += 16 * kRows) {
    __m512 x[NR_DOT];
    HPMOE_UNROLL for (int j = 0; j < NR_DOT; ++j) x[j] = Terms::along(line[j] + at, k - at);
    if (ahead) HPMOE_UNROLL for (int j = 0; j < NR_DOT; ++j) _mm_prefetch(line[j] + at + ahead, _MM_HINT_T1);
    HPMOE_UNROLL for (int i = 0; i < kRows; ++i) {
      const __m512 factor = _mm512_load_ps(a + i * 16);
      HPMOE_UNROLL for (int j = 0; j < NR_DOT; ++j) sum[i][j] = Terms::add(sum[i][j], factor, x[j]);
    }
  }
  alignas(64) float done[kPadded][NR_DOT];
  HPMOE_UNROLL for (int i = 0; i < kPadded; i += 4) _mm512_store_ps(done[i], sums_of(sum + i));
  const auto mask = static_cast<__mmask8>((1 << cols) - 1);
  HPMOE_UNROLL for (int i = 0; i < kRows; ++i, c += ldc) {
    const __m128 before = add ? _mm_maskz_loadu_ps(mask, c) : _mm_setzero_ps();
    _mm_mask_storeu_ps(c, mask, _mm_add_ps(before, _mm_load_ps(done[i])));
  }
}

// Returns Function<rows>::call from a table for 1, 2, ... rows.
template <template <int> class Function, int... kRows>
constexpr auto for_rows(int64_t rows, std::integer_sequence<int, kRows...>) {
  constexpr decltype(Function<1>::call) table[] = {Function<kRows + 1>::call...};
  return table[rows - 1];
}
template <int kRows>
struct Strip {
  static constexpr auto* call = multiply_strip<kRows>;
};
template <class Terms>
struct Dots {
  template <int kRows>
  struct Of {
    static constexpr auto* call = multiply_dots<Terms, kRows>;
  };
};

void multiply_by_strips(const Sizes& s, const Matrix& left, const Matrix& right, const Matrix& out, bool accumulate) {
  const float *const a = reinterpret_cast<const float*>(left.data), *const b = reinterpret_cast<const float*>(right.data);
  float* const c = reinterpret_cast<float*>(out.data);
  const int64_t lda = left.ld, ldb = right.ld, ldc = out.ld;
  thread_local Scratch<float> scratch;
  float* const packed = scratch.at_least(s.m * KC);
  const int64_t block = even_block(s.m, MR);
  for (int64_t k0 = 0; k0 < s.k; k0 += KC) {
    const int64_t kc = std::min(KC, s.k - k0);
    for (int64_t i0 = 0; i0 < s.m; i0 += block) {
      const int64_t rows = std::min(block, s.m - i0);
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t k = 0; k < kc; ++k) packed[i0 * kc + k * rows + i] = a[(i0 + i) * lda + k0 + k];
    }
    for (int64_t j = 0; j < s.n; j += NR) {
      for (int64_t i = 0; i < s.m; i += block) {
        const auto multiply = for_rows<Strip>(std::min(block, s.m - i), std::make_integer_sequence<int, MR>());
        multiply(kc, packed + i * kc, b + k0 * ldb + j, ldb, std::min(NR, s.n - j), c + i * ldc + j, ldc,
                 accumulate || k0 > 0);
      }
    }
  }
}

// Sets packed[vector][row][16] = a[row, k]. Pads with zeros.
template <class Terms>
HPMOE_AVX512 void pack_lanes(int64_t rows, int64_t kc, const typename Terms::Element* a, int64_t lda, float* packed) {
  for (int64_t k = 0; k < kc; k += 16 * Terms::kTerms) {
    for (int64_t i = 0; i < rows; ++i, packed += 16) _mm512_store_ps(packed, Terms::along(a + i * lda + k, kc - k));
  }
}

template <class Terms>
void multiply_by_dots(const Sizes& s, const Matrix& left, const Matrix& right, const Matrix& out, bool accumulate) {
  using Element = typename Terms::Element;
  const auto *const a = reinterpret_cast<const Element*>(left.data), *const b = reinterpret_cast<const Element*>(right.data);
  float* const c = reinterpret_cast<float*>(out.data);
  const int64_t lda = left.ld, ldb = right.ld, ldc = out.ld;
  constexpr int64_t kStep = KC_DOT * Terms::kTerms, kVector = 16 * Terms::kTerms;
  thread_local Scratch<float> scratch;
  float* const packed = scratch.at_least(s.m * KC_DOT);
  const int64_t block = even_block(s.m, MR_DOT);
  for (int64_t k = 0; k < s.k; k += kStep) {
    const int64_t kc = std::min(kStep, s.k - k), width = (kc + kVector - 1) / kVector * 16;
    for (int64_t i = 0; i < s.m; i += block) {
      pack_lanes<Terms>(std::min(block, s.m - i), kc, a + i * lda + k, lda, packed + i * width);
    }
    for (int64_t j = 0; j < s.n; j += NR_DOT) {
      for (int64_t i = 0; i < s.m; i += block) {
        const int64_t rows = std::min(block, s.m - i), cols = std::min(NR_DOT, s.n - j);
        const auto multiply = for_rows<Dots<Terms>::template Of>(rows, std::make_integer_sequence<int, MR_DOT>());
        multiply(kc, packed + i * width, b + j * ldb + k, ldb, cols, c + i * ldc + j, ldc, accumulate || k > 0,
                 i == 0 ? NR_DOT * ldb : 0);
      }
    }
  }
}

bool has_avx512() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bw");
  return has;
}

using Multiply = void (*)(const Sizes&, const Matrix&, const Matrix&, const Matrix&, bool);

Multiply dots_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::FLOAT16: return multiply_by_dots<ConvertedTerms<Dtype::FLOAT16>>;
    case Dtype::BFLOAT16:
      return multiplies_pairs() ? multiply_by_dots<PairTerms> : multiply_by_dots<ConvertedTerms<Dtype::BFLOAT16>>;
    default: return multiply_by_dots<Float32Terms>;
  }
}

}  // namespace

// b is read in place: with few rows, packing it as oneDNN does takes as long as the products, and transposing or
// converting takes longer. AMX is faster from about 64 rows of float32 on; in bfloat16 it takes as long for one row as
// for 16, and copies b first.
int64_t skinny_rows(Dtype dtype, bool transposed) {
  if (!has_avx512()) return 0;
  if (uses_amx()) return dtype == Dtype::FLOAT32 ? 56 : 8;
  if (dtype == Dtype::FLOAT32) return transposed ? 160 : 48;
  if (transposed) return 256;
  return dtype == Dtype::BFLOAT16 && multiplies_pairs() ? 112 : 56;
}

bool skinny_gemm(const Sizes& s, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) {
  if (a.transposed || s.m > skinny_rows(a.dtype, b.transposed) || a.dtype != b.dtype) return false;
  const auto whole = uses_amx() && a.dtype == Dtype::FLOAT32 ? multiply_by_strips : multiply_by_row_groups;
  (b.transposed ? dots_of(a.dtype) : whole)(s, a, b, c, accumulate);
  return true;
}

}  // namespace hpmoe

#else

namespace hpmoe {

int64_t skinny_rows(Dtype, bool) { return 0; }

bool skinny_gemm(const Sizes&, const Matrix&, const Matrix&, const Matrix&, bool) { return false; }

}  // namespace hpmoe

#endif

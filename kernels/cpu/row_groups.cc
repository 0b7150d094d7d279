#include "row_groups.h"

#include "terms.h"

#if defined(__x86_64__) && defined(__linux__)

#include <algorithm>

#include "few_pairs.h"
#include "scratch.h"

namespace hpmoe {
namespace {

// Rows of b (in lanes of Terms) and columns of b that are in registers at a time.
constexpr int64_t kLanes = 8, kCols = 32;
template <class Terms>
constexpr int64_t kRows = kLanes * Terms::kTerms;

// sums[kNum, kCols] += factors[kNum, kLanes] @ x. The products are summed first: fewer roundings add up.
template <class Terms, int kNum>
HPMOE_AVX512 inline void add_rows(const float* factors, const __m512 (&x)[kLanes][2], float* sums) {
  __m512 sum[kNum][2];
  HPMOE_UNROLL for (int i = 0; i < kNum; ++i) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
  HPMOE_UNROLL for (int k = 0; k < kLanes; ++k) {
    HPMOE_UNROLL for (int i = 0; i < kNum; ++i) {
      const __m512 factor = _mm512_set1_ps(factors[i * kLanes + k]);
      sum[i][0] = Terms::add(sum[i][0], factor, x[k][0]);
      sum[i][1] = Terms::add(sum[i][1], factor, x[k][1]);
    }
  }
  HPMOE_UNROLL for (int i = 0; i < kNum; ++i, sums += kCols) {
    _mm512_store_ps(sums, _mm512_add_ps(_mm512_load_ps(sums), sum[i][0]));
    _mm512_store_ps(sums + 16, _mm512_add_ps(_mm512_load_ps(sums + 16), sum[i][1]));
  }
}

// Adds factors[m, kLanes] @ b to sums[m, kCols]. b has `rows` x `cols` elements, or a whole strip if kWhole. The terms of
// a group are summed first, which adds fewer roundings. Prefetches b + `ahead`.
template <class Terms, bool kWhole>
HPMOE_AVX512 inline void add_strip(int64_t m, const float* factors, const typename Terms::Element* b, int64_t ldb,
                                   int64_t rows, int64_t cols, float* sums, int64_t ahead) {
  __m512 x[kLanes][2];
  HPMOE_UNROLL for (int k = 0; k < kLanes; ++k) {
    const int64_t row = k * Terms::kTerms;
    Terms::across(b + row * ldb, ldb, kWhole ? Terms::kTerms : rows - row, kWhole ? kCols : cols, x[k]);
  }
  HPMOE_UNROLL for (int row = 0; row < kRows<Terms>; ++row) {
    _mm_prefetch(b + row * ldb + ahead, _MM_HINT_T1);
    if (sizeof *b == 4) _mm_prefetch(b + row * ldb + ahead + 16, _MM_HINT_T1);
  }
  for (; m > 1; m -= 2, factors += 2 * kLanes, sums += 2 * kCols) add_rows<Terms, 2>(factors, x, sums);
  if (m > 0) add_rows<Terms, 1>(factors, x, sums);
}

// add_strip() for a single row of a, over all whole strips of b, with the factors in registers.
template <class Terms>
HPMOE_AVX512 void add_to_row(int64_t n, const float* factors, const typename Terms::Element* b, int64_t ldb, float* sums,
                             int64_t ahead) {
  __m512 factor[kLanes];
  HPMOE_UNROLL for (int k = 0; k < kLanes; ++k) factor[k] = _mm512_set1_ps(factors[k]);
  for (int64_t j = 0; j + kCols <= n; j += kCols, b += kCols, sums += kCols) {
    if (sizeof *b == 2) {  // the core itself fetches rows of float32 in time
      HPMOE_UNROLL for (int row = 0; row < kRows<Terms>; ++row) _mm_prefetch(b + row * ldb + ahead, _MM_HINT_T1);
    }
    __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    HPMOE_UNROLL for (int k = 0; k < kLanes; ++k) {
      __m512 x[2];
      Terms::across(b + k * Terms::kTerms * ldb, ldb, Terms::kTerms, kCols, x);
      sum[0] = Terms::add(sum[0], factor[k], x[0]);
      sum[1] = Terms::add(sum[1], factor[k], x[1]);
    }
    _mm512_store_ps(sums, _mm512_add_ps(_mm512_load_ps(sums), sum[0]));
    _mm512_store_ps(sums + 16, _mm512_add_ps(_mm512_load_ps(sums + 16), sum[1]));
  }
}

// Adds factors[m, kLanes] @ b[rows, n] to sums[strip][m][kCols].
template <class Terms>
HPMOE_AVX512 void add_group(int64_t m, int64_t n, const float* factors, const typename Terms::Element* b, int64_t ldb,
                            int64_t rows, float* sums, int64_t ahead) {
  int64_t done = 0;
  if (m == 1 && rows == kRows<Terms>) {
    add_to_row<Terms>(n, factors, b, ldb, sums, ahead);
    done = n / kCols * kCols;
    sums += done;
  }
  for (int64_t j = done; j < n; j += kCols, sums += m * kCols) {
    const bool is_whole = rows == kRows<Terms> && n - j >= kCols;
    (is_whole ? add_strip<Terms, true> : add_strip<Terms, false>)(m, factors, b + j, ldb, rows, n - j, sums, ahead);
  }
}

// Stores sums[strip][m][kCols] to c[m, n], or adds them.
void put_sums(const Sizes& s, const float* sums, float* c, int64_t ldc, bool accumulate) {
  for (int64_t j = 0; j < s.n; j += kCols, sums += s.m * kCols) {
    for (int64_t i = 0; i < s.m; ++i) {
      float* const to = c + i * ldc + j;
      const float* const from = sums + i * kCols;
      for (int64_t col = 0; col < std::min(kCols, s.n - j); ++col) to[col] = from[col] + (accumulate ? to[col] : 0.0f);
    }
  }
}

template <class Terms>
void multiply(const Sizes& s, const Matrix& left, const Matrix& right, const Matrix& out, bool accumulate) {
  using Element = typename Terms::Element;
  const auto *const a = reinterpret_cast<const Element*>(left.data), *const b = reinterpret_cast<const Element*>(right.data);
  thread_local Scratch<float> scratch;
  const int64_t num_sums = (s.n + kCols - 1) / kCols * kCols * s.m;
  float *const sums = scratch.at_least(num_sums + s.m * kLanes), *const factors = sums + num_sums;
  std::fill_n(sums, num_sums, 0.0f);
  for (int64_t k = 0; k < s.k; k += kRows<Terms>) {
    const int64_t rows = std::min(kRows<Terms>, s.k - k);
    if (rows < kRows<Terms>) std::fill_n(factors, s.m * kLanes, 0.0f);
    for (int64_t i = 0; i < s.m; ++i) Terms::factors(a + i * left.ld + k, rows, factors + i * kLanes);
    add_group<Terms>(s.m, s.n, factors, b + k * right.ld, right.ld, rows, sums,
                     k + kRows<Terms> < s.k ? kRows<Terms> * right.ld : 0);
  }
  put_sums(s, sums, reinterpret_cast<float*>(out.data), out.ld, accumulate);
}

}  // namespace

void multiply_by_row_groups(const Sizes& s, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) {
  switch (b.dtype) {
    case Dtype::BFLOAT16:
      return (multiplies_pairs() ? multiply<PairTerms> : multiply<ConvertedTerms<Dtype::BFLOAT16>>)(s, a, b, c, accumulate);
    case Dtype::FLOAT16: return multiply<ConvertedTerms<Dtype::FLOAT16>>(s, a, b, c, accumulate);
    default: return multiply<Float32Terms>(s, a, b, c, accumulate);
  }
}

}  // namespace hpmoe

#endif

#include "few_pairs.h"

#include "terms.h"

#if defined(__x86_64__) && defined(__linux__)

#include <algorithm>

namespace hpmoe {
namespace {

constexpr int kRows = 8;  // of sums in registers, two vectors each

// Computes sums[kRows, kPairCols] of columns of panel a with panel b.
HPMOE_AVX512 void multiply_block(int64_t num_pairs, const float* a, const float* b, float* sums, int64_t ld) {
  __m512 sum[kRows][2];
  HPMOE_UNROLL for (int i = 0; i < kRows; ++i) sum[i][0] = sum[i][1] = _mm512_setzero_ps();
  for (int64_t pair = 0; pair < num_pairs; ++pair, a += kPairCols, b += kPairCols) {
    const __m512 low = _mm512_load_ps(b), high = _mm512_load_ps(b + 16);
    HPMOE_UNROLL for (int i = 0; i < kRows; ++i) {
      const __m512 factor = _mm512_set1_ps(a[i]);
      sum[i][0] = PairTerms::add(sum[i][0], factor, low);
      sum[i][1] = PairTerms::add(sum[i][1], factor, high);
    }
  }
  HPMOE_UNROLL for (int i = 0; i < kRows; ++i, sums += ld) {
    _mm512_store_ps(sums, sum[i][0]);
    _mm512_store_ps(sums + 16, sum[i][1]);
  }
}

HPMOE_AVX512 void pack_panels(const Matrix& x, int64_t k, int64_t n, float* panels) {
  const auto* const from = reinterpret_cast<const uint16_t*>(x.data);
  for (int64_t j = 0; j < n; j += kPairCols) {
    for (int64_t row = 0; row < k; row += 2, panels += kPairCols) {
      __m512 lanes[2];
      PairTerms::across(from + row * x.ld + j, x.ld, k - row, n - j, lanes);
      _mm512_store_ps(panels, lanes[0]);
      _mm512_store_ps(panels + 16, lanes[1]);
    }
  }
}

}  // namespace

// An Intel core takes four times as long for an instruction on pairs as for one on float32 terms, so converted terms take
// half the time.
bool multiplies_pairs() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512bf16") &&
                          !__builtin_cpu_is("intel");
  return has;
}

void pack_pairs(const Matrix& x, int64_t k, int64_t n, float* panels) { pack_panels(x, k, n, panels); }

void multiply_pairs(int64_t num_pairs, int64_t num_panels, const float* a, const float* b, float* sums) {
  const int64_t ld = num_panels * kPairCols;
  for (int64_t j = 0; j < ld; j += kPairCols, b += num_pairs * kPairCols) {
    for (int64_t i = 0; i < kPairCols; i += kRows) multiply_block(num_pairs, a + i, b, sums + i * ld + j, ld);
  }
}

}  // namespace hpmoe

#else

namespace hpmoe {

bool multiplies_pairs() { return false; }

void pack_pairs(const Matrix&, int64_t, int64_t, float*) {}

void multiply_pairs(int64_t, int64_t, const float*, const float*, float*) {}

}  // namespace hpmoe

#endif

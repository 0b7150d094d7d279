// Vectors of 16 float32 sums and the terms that are multiplied into them. A lane holds 32 bits of each operand: one term,
// or a pair of bfloat16 terms.
#pragma once

#if defined(__x86_64__) && defined(__linux__)

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "convert.h"

#define HPMOE_AVX512 __attribute__((target("avx512f,avx512vl,avx512bw,avx512bf16")))
#define HPMOE_UNROLL _Pragma("GCC unroll 16")

namespace hpmoe {

constexpr uint16_t kAll = 0xFFFF;  // without a mask GCC warns of undefined elements

// Masks of the first n of 16 and of 32.
constexpr __mmask16 first(int64_t n) { return n >= 16 ? 0xFFFF : n <= 0 ? 0 : static_cast<__mmask16>((1u << n) - 1u); }
constexpr __mmask32 first_halves(int64_t n) { return n >= 32 ? ~0u : n <= 0 ? 0u : (1u << n) - 1u; }

struct Float32Terms {
  using Element = float;
  static constexpr int64_t kTerms = 1;  // in a lane

  // Loads up to 16 terms of one line; zeros past `left` terms.
  HPMOE_AVX512 static __m512 along(const float* line, int64_t left) { return _mm512_maskz_loadu_ps(first(left), line); }

  // Loads the terms of a row for up to 32 columns; zeros past `cols`, and all zeros if rows <= 0.
  HPMOE_AVX512 static void across(const float* row, int64_t, int64_t rows, int64_t cols, __m512* lanes) {
    const int64_t left = rows > 0 ? cols : 0;
    lanes[0] = _mm512_maskz_loadu_ps(first(left), row);
    lanes[1] = _mm512_maskz_loadu_ps(first(left - 16), row + 16);
  }

  // Writes n terms of a line as factors, one lane after another.
  static void factors(const float* line, int64_t n, float* lanes) { std::memcpy(lanes, line, n * sizeof *line); }

  HPMOE_AVX512 static __m512 add(__m512 sum, __m512 a, __m512 b) { return _mm512_fmadd_ps(a, b, sum); }
};

// float16 or bfloat16 terms, each converted to float32.
template <Dtype kDtype>
struct ConvertedTerms {
  using Element = uint16_t;
  static constexpr int64_t kTerms = 1;

  HPMOE_AVX512 static __m512 along(const uint16_t* line, int64_t left) {
    const __m256i terms = _mm256_maskz_loadu_epi16(first(left), line);
    if (kDtype == Dtype::FLOAT16) return _mm512_maskz_cvtph_ps(kAll, terms);
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, _mm512_maskz_cvtepu16_epi32(kAll, terms), 16));
  }

  HPMOE_AVX512 static void across(const uint16_t* row, int64_t, int64_t rows, int64_t cols, __m512* lanes) {
    for (int i = 0; i < 2; ++i) lanes[i] = along(row + 16 * i, rows > 0 ? cols - 16 * i : 0);
  }

  static void factors(const uint16_t* line, int64_t n, float* lanes) { to_float32(kDtype, line, n, lanes); }

  HPMOE_AVX512 static __m512 add(__m512 sum, __m512 a, __m512 b) { return _mm512_fmadd_ps(a, b, sum); }
};

// Pairs of bfloat16 terms, for cores where multiplies_pairs() is true.
struct PairTerms {
  using Element = uint16_t;
  static constexpr int64_t kTerms = 2;

  HPMOE_AVX512 static __m512 along(const uint16_t* line, int64_t left) {
    return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(first_halves(left), line));
  }

  HPMOE_AVX512 static void across(const uint16_t* row, int64_t ld, int64_t rows, int64_t cols, __m512* lanes) {
    const __m512i even = _mm512_maskz_loadu_epi16(first_halves(rows > 0 ? cols : 0), row);
    const __m512i odd = _mm512_maskz_loadu_epi16(first_halves(rows > 1 ? cols : 0), row + ld);
    alignas(64) static constexpr uint16_t kPairs[2][32] = {{0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                            8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
                                                           {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
                                                            24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
    for (int i = 0; i < 2; ++i)
      lanes[i] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(even, _mm512_load_si512(kPairs[i]), odd));
  }

  static void factors(const uint16_t* line, int64_t n, float* lanes) { std::memcpy(lanes, line, n * sizeof *line); }

  HPMOE_AVX512 static __m512 add(__m512 sum, __m512 a, __m512 b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
  }
};

}  // namespace hpmoe

#endif

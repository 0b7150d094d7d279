// Scalar functions that compilers vectorise in loops: no branches, no library calls, no errno. Results are within 3 ulp;
// NaN gives NaN.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "bits.h"
#include "multiversion.h"

namespace hpmoe {

// Splits x = n ln2 + r with |r| <= ln2 / 2. The integer n is read from the low bits of n + 1.5 * 2^23.
struct ExpParts {
  float r;
  int32_t n;
};

HPMOE_INLINE ExpParts split_exp(float x) {
  constexpr float kShift = 12582912.0f, kLog2e = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  const float shifted = x * kLog2e + kShift;
  const float n = shifted - kShift;
  return {(x - n * kLn2High) - n * kLn2Low, bits_as<int32_t>(shifted) - bits_as<int32_t>(kShift)};
}

// Returns exp(r) - 1 for |r| <= ln2 / 2 by its Taylor series; the first omitted term is 5e-9.
HPMOE_INLINE float expm1_reduced(float r) {
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  return r + (r * r) * p;
}

HPMOE_INLINE float power_of_two(int32_t n) { return bits_as<float>(static_cast<uint32_t>(n + 127) << 23); }

HPMOE_INLINE float exp_(float x) {
  const float c = choose(x > 89.0f, 89.0f, x);
  const ExpParts parts = split_exp(choose(c < -104.0f, -104.0f, c));
  const int32_t half = parts.n >> 1;  // in two steps, for results below the smallest normal number
  return (1.0f + expm1_reduced(parts.r)) * power_of_two(half) * power_of_two(parts.n - half);
}

HPMOE_INLINE float abs_(float x) { return bits_as<float>(bits_as<uint32_t>(x) & 0x7FFFFFFFu); }

HPMOE_INLINE float with_sign_of(float magnitude, float sign) {
  return bits_as<float>((bits_as<uint32_t>(magnitude) & 0x7FFFFFFFu) | (bits_as<uint32_t>(sign) & 0x80000000u));
}

HPMOE_INLINE float tanh_(float x) {
  const float a = abs_(x);
  const ExpParts parts = split_exp(2.0f * choose(a > 10.0f, 10.0f, a));
  const float scale = power_of_two(parts.n);
  const float m = scale * expm1_reduced(parts.r) + (scale - 1.0f);  // exp(2a) - 1
  return with_sign_of(m / (m + 2.0f), x);
}

HPMOE_INLINE float sigmoid_(float x) { return 1.0f / (1.0f + exp_(-x)); }
HPMOE_INLINE float silu_(float x) { return x / (1.0f + exp_(-x)); }

HPMOE_INLINE float maximum_(float a, float b) { return (a > b || a != a) ? a : b; }
HPMOE_INLINE float minimum_(float a, float b) { return (a < b || a != a) ? a : b; }

}  // namespace hpmoe

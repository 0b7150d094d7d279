// Remainders and floor quotients of float32 on the scalar unit, exact: they are computed from the bits.
#pragma once

#include "device.h"

namespace hpmoe {

union FloatBits {
  float number;
  uint32_t bits;
};

constexpr uint32_t kSignOfFloat = 0x80000000u, kInfiniteBits = 0x7F800000u, kNanBits = 0x7FC00000u;

__aicore__ inline float float_of(uint32_t bits) {
  FloatBits both;
  both.bits = bits;
  return both.number;
}
__aicore__ inline uint32_t bits_of(float number) {
  FloatBits both;
  both.number = number;
  return both.bits;
}

// |x| is part * 2^(power - 150).
constexpr uint32_t kFraction = 0x7FFFFFu, kOne = 0x800000u;
__aicore__ inline uint32_t part_of(uint32_t x) { return x < kOne ? x : (x & kFraction) | kOne; }
__aicore__ inline int32_t power_of(uint32_t x) { return static_cast<int32_t>(x < kOne ? 1 : x >> 23); }

// Returns the remainder of |a| by |b| with the sign of a, as bits.
__aicore__ inline uint32_t left_of(uint32_t a, uint32_t b) {
  const uint32_t sign = a & kSignOfFloat;
  a ^= sign;
  b &= ~kSignOfFloat;
  if (a >= kInfiniteBits || b > kInfiniteBits || b == 0) return kNanBits;
  if (a < b) return a | sign;
  const uint64_t divisor = part_of(b);
  uint64_t left = part_of(a) % divisor;
  int32_t power = power_of(b);
  for (int32_t more = power_of(a) - power; more > 0;) {
    const int32_t bits = least(more, 38);
    left = (left << bits) % divisor;
    more -= bits;
  }
  while (left != 0 && left < kOne && power > 1) {
    left <<= 1;
    --power;
  }
  const auto rest = static_cast<uint32_t>(left);
  return sign | (rest < kOne ? rest : (static_cast<uint32_t>(power) << 23 | (rest & kFraction)));
}

__aicore__ inline bool is_negative(uint32_t bits) { return (bits & kSignOfFloat) != 0; }

// The result has the sign of b.
__aicore__ inline float float_remainder(float a, float b) {
  const uint32_t left = left_of(bits_of(a), bits_of(b)), divisor = bits_of(b);
  if ((left & ~kSignOfFloat) == 0) return float_of(divisor & kSignOfFloat);
  return is_negative(left) != is_negative(divisor) ? float_of(left) + b : float_of(left);
}

__aicore__ inline float float_floor_div(float a, float b) {
  constexpr float kAllWhole = 8388608.0f;  // every float32 from here on is an integer
  if (b == 0.0f) return a / b;
  const uint32_t left = left_of(bits_of(a), bits_of(b));
  const bool is_below = (left & ~kSignOfFloat) != 0 && is_negative(left) != is_negative(bits_of(b));
  const float whole = (a - float_of(left)) / b - (is_below ? 1.0f : 0.0f);
  if (whole == 0.0f) return float_of(bits_of(a / b) & kSignOfFloat);
  if (!(whole > -kAllWhole && whole < kAllWhole)) return whole;
  return static_cast<float>(static_cast<int32_t>(whole + (whole < 0.0f ? -0.5f : 0.5f)));
}

}  // namespace hpmoe

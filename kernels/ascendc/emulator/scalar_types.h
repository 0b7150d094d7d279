// bfloat16_t, half and the enums that the device compiler has built in.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "cpu/convert.h"

enum pipe_t { PIPE_S, PIPE_V, PIPE_M, PIPE_MTE1, PIPE_MTE2, PIPE_MTE3, PIPE_FIX, PIPE_ALL };
enum QuantMode_t { NoQuant, F322F16, F322BF16 };

struct bfloat16_t {
  uint16_t bits;
};
struct half {
  uint16_t bits;
};
struct fp8_e4m3fn_t {
  uint8_t bits;
};
struct fp8_e8m0_t {
  uint8_t bits;
};

namespace emulator {

template <class T>
struct DtypeOf;
template <>
struct DtypeOf<float> {
  static constexpr hpmoe::Dtype value = hpmoe::Dtype::FLOAT32;
};
template <>
struct DtypeOf<bfloat16_t> {
  static constexpr hpmoe::Dtype value = hpmoe::Dtype::BFLOAT16;
};
template <>
struct DtypeOf<half> {
  static constexpr hpmoe::Dtype value = hpmoe::Dtype::FLOAT16;
};

template <class T>
void widen(const T* from, int64_t n, float* to) {
  hpmoe::to_float32(DtypeOf<T>::value, from, n, to);
}

inline float value_of(fp8_e4m3fn_t x) {
  const int exponent = x.bits >> 3 & 15, fraction = x.bits & 7;
  const float size = exponent > 0 ? std::ldexp(8.0f + fraction, exponent - 10) : std::ldexp(1.0f * fraction, -9);
  return (x.bits & 127) == 127 ? std::nanf("") : std::copysign(size, x.bits & 128 ? -1.0f : 1.0f);
}

// Rounds to the 11 bits of mantissa of HF32, to nearest.
inline void round_to_hf32(float* numbers, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, numbers + i, sizeof bits);
    if ((bits >> 23 & 0xFF) != 0xFF) bits = (bits + 0x800) & ~0xFFFu;
    std::memcpy(numbers + i, &bits, sizeof bits);
  }
}

// Rounds to nearest, ties to even. With saturation, infinity becomes the largest number and NaN becomes 0.
template <class T>
void narrow(const float* from, int64_t n, T* to, bool saturates) {
  hpmoe::from_float32(DtypeOf<T>::value, from, n, to);
  if constexpr (sizeof(T) == sizeof(uint16_t)) {
    constexpr uint16_t kInfinite = DtypeOf<T>::value == hpmoe::Dtype::FLOAT16 ? 0x7C00 : 0x7F80, kSign = 0x8000;
    for (int64_t i = 0; saturates && i < n; ++i) {
      const uint16_t size = to[i].bits & ~kSign;
      if (size >= kInfinite) to[i].bits = size > kInfinite ? 0 : (to[i].bits & kSign) | (kInfinite - 1);
    }
  }
}

}  // namespace emulator

// bfloat16_t, half and the enums that the device compiler knows without a header.
#pragma once

#include <cstdint>

#include "cpu/convert.h"

enum pipe_t { PIPE_S, PIPE_V, PIPE_M, PIPE_MTE1, PIPE_MTE2, PIPE_MTE3, PIPE_FIX, PIPE_ALL };
enum QuantMode_t { NoQuant, F322F16, F322BF16 };

struct bfloat16_t {
  uint16_t bits;
};
struct half {
  uint16_t bits;
};

namespace twin {

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

// Rounded to nearest, ties to even.
template <class T>
void narrow(const float* from, int64_t n, T* to) {
  hpmoe::from_float32(DtypeOf<T>::value, from, n, to);
}

}  // namespace twin

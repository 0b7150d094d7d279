// Casts between float8_e4m3fn and float32, on a 950.
#pragma once

#include <cmath>

#include "vector.h"

namespace AscendC {

inline void Cast(const LocalTensor<float>& out, const LocalTensor<fp8_e4m3fn_t>& a, const RoundMode& mode,
                 const uint32_t count) {
  emulator::require(emulator::kIs950, "Cast: float8_e4m3fn is of the 950");
  emulator::require(mode == RoundMode::CAST_NONE, "Cast: the round mode does not fit");
  detail::elementwise("Cast", count, emulator::value_of, out, a);
}

// Rounds to nearest, ties to even. Without saturation, numbers beyond 448 become NaN.
inline void Cast(const LocalTensor<fp8_e4m3fn_t>& out, const LocalTensor<float>& a, const RoundMode& mode,
                 const uint32_t count) {
  emulator::require(emulator::kIs950, "Cast: float8_e4m3fn is of the 950");
  emulator::require(mode == RoundMode::CAST_RINT, "Cast: the round mode does not fit");
  const auto rounded = [](float x) {
    const double size = std::fabs(static_cast<double>(x));
    const int exponent = size >= 0x1p-6 ? std::ilogb(size) : -6;
    const double steps = std::nearbyint(std::ldexp(size, 3 - exponent));  // 8 to 16 for a normal number
    const double code = steps + 8.0 * (exponent + 6);
    return fp8_e4m3fn_t{static_cast<uint8_t>((code <= 126 ? static_cast<int>(code) : 127) | (std::signbit(x) ? 128 : 0))};
  };
  detail::elementwise("Cast", count, rounded, out, a);
}

}  // namespace AscendC

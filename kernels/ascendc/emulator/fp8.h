// Casts between float8_e4m3fn and float32, on a 950.
#pragma once

#include <cmath>

#include "vector.h"

namespace AscendC {

inline void Cast(const LocalTensor<float>& out, const LocalTensor<fp8_e4m3fn_t>& a, const RoundMode& mode,
                 const uint32_t count) {
  emulator::require(emulator::kIs950, "Cast: float8_e4m3fn is of the 950");
  emulator::require(mode == RoundMode::CAST_NONE, "Cast: the round mode does not fit");
  emulator::Core& core = emulator::current();
  detail::vector_work(
      "Cast", count,
      [=, &core] {
        const fp8_e4m3fn_t* x = detail::operand(core, a, count, "Cast");
        float* z = detail::operand(core, out, count, "Cast");
        for (uint32_t i = 0; i < count; ++i) z[i] = emulator::value_of(x[i]);
      },
      out, a);
}

// Rounds to nearest, ties to even. Without saturation, numbers beyond 448 become NaN.
inline void Cast(const LocalTensor<fp8_e4m3fn_t>& out, const LocalTensor<float>& a, const RoundMode& mode,
                 const uint32_t count) {
  emulator::require(emulator::kIs950, "Cast: float8_e4m3fn is of the 950");
  emulator::require(mode == RoundMode::CAST_RINT, "Cast: the round mode does not fit");
  emulator::Core& core = emulator::current();
  detail::vector_work(
      "Cast", count,
      [=, &core] {
        const float* x = detail::operand(core, a, count, "Cast");
        fp8_e4m3fn_t* z = detail::operand(core, out, count, "Cast");
        for (uint32_t i = 0; i < count; ++i) {
          const double size = std::fabs(static_cast<double>(x[i]));
          const int exponent = size >= 0x1p-6 ? std::ilogb(size) : -6;
          const double steps = std::nearbyint(std::ldexp(size, 3 - exponent));  // 8 to 16 for a normal number
          const double code = steps + 8.0 * (exponent + 6);
          z[i].bits = static_cast<uint8_t>((code <= 126 ? static_cast<int>(code) : 127) | (std::signbit(x[i]) ? 128 : 0));
        }
      },
      out, a);
}

}  // namespace AscendC

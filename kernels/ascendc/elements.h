// Converts elements of one byte, of quantised rows, to float32 and back: int8 on every chip, float8_e4m3fn on a 950.
#pragma once

#include "core/row_format.h"
#include "vector_unit.h"

namespace hpmoe {

constexpr bool kHasFp8 = HPMOE_CHIP == 3510;

__aicore__ inline bool has_cast(Element element) { return element == Element::INT8 || kHasFp8; }
__aicore__ inline float largest_of(Element element) { return element == Element::INT8 ? 127.0f : 448.0f; }

#if HPMOE_CHIP == 3510
__aicore__ inline void widen_fp8(const Floats& to, const Bytes& from, int32_t count) {
  AscendC::Cast(to, from.ReinterpretCast<fp8_e4m3fn_t>(), AscendC::RoundMode::CAST_NONE, count);
}
__aicore__ inline void narrow_fp8(const Bytes& to, const Floats& x, int32_t count) {
  AscendC::Cast(to.ReinterpretCast<fp8_e4m3fn_t>(), x, AscendC::RoundMode::CAST_RINT, count);
}
#else
__aicore__ inline void widen_fp8(const Floats&, const Bytes&, int32_t) {}
__aicore__ inline void narrow_fp8(const Bytes&, const Floats&, int32_t) {}
#endif

// Converts int8 through half, in the buffer `exact`.
__aicore__ inline void widen_elements(Element element, const Floats& to, const Bytes& from, const Floats& exact,
                                      int32_t count) {
  if (element == Element::E4M3) return widen_fp8(to, from, count);
  const auto halves = exact.ReinterpretCast<half>();
  in_order::Cast(halves, from.ReinterpretCast<int8_t>(), AscendC::RoundMode::CAST_NONE, count);
  AscendC::Cast(to, halves, AscendC::RoundMode::CAST_NONE, count);
}

// Rounds numbers, at most the format's largest magnitude, to nearest even; overwrites x.
__aicore__ inline void narrow_elements(Element element, const Bytes& to, const Floats& x, const Floats& exact,
                                       int32_t count) {
  if (element == Element::E4M3) return narrow_fp8(to, x, count);
  in_order::Cast(x, x, AscendC::RoundMode::CAST_RINT, count);
  const auto halves = exact.ReinterpretCast<half>();  // integers up to 127
  in_order::Cast(halves, x, AscendC::RoundMode::CAST_RINT, count);
  AscendC::Cast(to.ReinterpretCast<int8_t>(), halves, AscendC::RoundMode::CAST_RINT, count);
}

}  // namespace hpmoe

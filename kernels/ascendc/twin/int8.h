// Casts between int8 and half.
#pragma once

#include "vector.h"

namespace AscendC {

inline void Cast(const LocalTensor<half>& out, const LocalTensor<int8_t>& a, const RoundMode& mode, const uint32_t count) {
  twin::require(mode == RoundMode::CAST_NONE, "Cast: the round mode does not fit");
  twin::Core& core = twin::current();
  detail::vector_work(
      "Cast", count,
      [=, &core] {
        const int8_t* x = detail::operand(core, a, count, "Cast");
        const std::vector<float> wide(x, x + count);
        twin::narrow(wide.data(), count, detail::operand(core, out, count, "Cast"), false);
      },
      out, a);
}

// What an int8 cannot hold becomes the nearest that it can.
inline void Cast(const LocalTensor<int8_t>& out, const LocalTensor<half>& a, const RoundMode& mode, const uint32_t count) {
  twin::require(mode == RoundMode::CAST_RINT, "Cast: the round mode does not fit");
  twin::Core& core = twin::current();
  detail::vector_work(
      "Cast", count,
      [=, &core] {
        std::vector<float> wide(count);
        twin::widen(detail::operand(core, a, count, "Cast"), count, wide.data());
        int8_t* z = detail::operand(core, out, count, "Cast");
        for (uint32_t i = 0; i < count; ++i)
          z[i] = static_cast<int8_t>(std::min(127.0f, std::max(-128.0f, std::nearbyint(wide[i]))));
      },
      out, a);
}

}  // namespace AscendC

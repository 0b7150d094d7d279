// Casts between half and int8 or uint8.
#pragma once

#include "vector.h"

namespace AscendC {

template <class T, class = std::enable_if_t<std::is_same_v<T, int8_t> || std::is_same_v<T, uint8_t>>>
void Cast(const LocalTensor<half>& out, const LocalTensor<T>& a, const RoundMode& mode, const uint32_t count) {
  emulator::require(mode == RoundMode::CAST_NONE, "Cast: the round mode does not fit");
  emulator::Core& core = emulator::current();
  detail::vector_work(
      "Cast", count,
      [=, &core] {
        const T* x = detail::operand(core, a, count, "Cast");
        const std::vector<float> wide(x, x + count);
        emulator::narrow(wide.data(), count, detail::operand(core, out, count, "Cast"), false);
      },
      out, a);
}

// Saturates.
template <class T, class = std::enable_if_t<std::is_same_v<T, int8_t> || std::is_same_v<T, uint8_t>>>
void Cast(const LocalTensor<T>& out, const LocalTensor<half>& a, const RoundMode& mode, const uint32_t count) {
  emulator::require(mode == RoundMode::CAST_RINT, "Cast: the round mode does not fit");
  emulator::Core& core = emulator::current();
  detail::vector_work(
      "Cast", count,
      [=, &core] {
        std::vector<float> wide(count);
        emulator::widen(detail::operand(core, a, count, "Cast"), count, wide.data());
        T* z = detail::operand(core, out, count, "Cast");
        constexpr float kLeast = std::numeric_limits<T>::min(), kMost = std::numeric_limits<T>::max();
        for (uint32_t i = 0; i < count; ++i)
          z[i] = static_cast<T>(std::min(kMost, std::max(kLeast, std::nearbyint(wide[i]))));
      },
      out, a);
}

}  // namespace AscendC

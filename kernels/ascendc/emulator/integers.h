// Vector instructions on int32, which keep the low bits on overflow, and on the bits of words.
#pragma once

#include "vector.h"

namespace AscendC {

// On an A2, only words of 16 bits.
#define HPMOE_EMULATOR_BITS(name, expression)                                                                               \
  inline void name(const LocalTensor<uint16_t>& out, const LocalTensor<uint16_t>& a, const LocalTensor<uint16_t>& b,        \
                   const int32_t& count) {                                                                                  \
    detail::elementwise(#name, count, [](uint16_t x, uint16_t y) { return static_cast<uint16_t>(expression); }, out, a, b); \
  }
HPMOE_EMULATOR_BITS(And, x& y)
HPMOE_EMULATOR_BITS(Or, x | y)
#undef HPMOE_EMULATOR_BITS

// A signed shift to the right copies the sign.
template <class T>
void ShiftRight(const LocalTensor<T>& out, const LocalTensor<T>& a, const T& scalar, const int32_t& count) {
  static_assert(std::is_same_v<T, int32_t> || std::is_same_v<T, uint32_t>, "words that the kernel shifts");
  emulator::require(scalar >= 0 && scalar < 32, "ShiftRight: by ", scalar, " bits");
  detail::elementwise("ShiftRight", count, [scalar](T x) { return static_cast<T>(x >> scalar); }, out, a);
}

inline void Cast(const LocalTensor<float>& out, const LocalTensor<int32_t>& a, const RoundMode& mode, const uint32_t count) {
  emulator::require(mode == RoundMode::CAST_RINT, "Cast: the round mode does not fit");
  detail::elementwise("Cast", count, [](int32_t x) { return static_cast<float>(x); }, out, a);
}
// Saturates.
inline void Cast(const LocalTensor<int32_t>& out, const LocalTensor<float>& a, const RoundMode& mode, const uint32_t count) {
  emulator::require(mode == RoundMode::CAST_RINT, "Cast: the round mode does not fit");
  const auto rounded = [](float x) {
    const float whole = std::nearbyint(x);
    return whole >= 2147483648.0f    ? std::numeric_limits<int32_t>::max()
           : whole >= -2147483648.0f ? static_cast<int32_t>(whole)
                                     : std::numeric_limits<int32_t>::min();
  };
  detail::elementwise("Cast", count, rounded, out, a);
}
// Saturates.
inline void Cast(const LocalTensor<int32_t>& out, const LocalTensor<int64_t>& a, const RoundMode& mode,
                 const uint32_t count) {
  emulator::require(mode == RoundMode::CAST_NONE, "Cast: the round mode does not fit");
  detail::elementwise(
      "Cast", count, [](int64_t x) { return static_cast<int32_t>(std::clamp<int64_t>(x, INT32_MIN, INT32_MAX)); }, out, a);
}

// Sets out to first, first + 1, ...
inline void CreateVecIndex(LocalTensor<int32_t> out, const int32_t& first, uint32_t count) {
  detail::elementwise("CreateVecIndex", count, [next = first]() mutable { return next++; }, out);
}

// Copies whole blocks of 32 bytes from UB to UB.
template <class T>
void DataCopy(const LocalTensor<T>& to, const LocalTensor<T>& from, const uint32_t count) {
  const uint64_t bytes = uint64_t{count} * sizeof(T);
  emulator::require(bytes % 32 == 0, "DataCopy: ", bytes, " bytes are no multiple of 32");
  detail::elementwise("DataCopy", count, [](T x) { return x; }, to, from);
}

}  // namespace AscendC

// Vector instructions on int32, which keep the low bits on overflow, and on the bits of words.
#pragma once

#include "vector.h"

namespace AscendC {

#define HPMOE_EMULATOR_OF_INT32(name, expression)                                                                   \
  inline void name(const LocalTensor<int32_t>& out, const LocalTensor<int32_t>& a, const LocalTensor<int32_t>& b,   \
                   const int32_t& count) {                                                                          \
    detail::binary(#name, out, a, b, count, [](int32_t x, int32_t y) { return static_cast<int32_t>(expression); }); \
  }
HPMOE_EMULATOR_OF_INT32(Add, static_cast<uint32_t>(x) + static_cast<uint32_t>(y))
HPMOE_EMULATOR_OF_INT32(Sub, static_cast<uint32_t>(x) - static_cast<uint32_t>(y))
HPMOE_EMULATOR_OF_INT32(Mul, static_cast<uint32_t>(x) * static_cast<uint32_t>(y))
#undef HPMOE_EMULATOR_OF_INT32

#define HPMOE_EMULATOR_OF_INT32(name, expression)                                                          \
  inline void name(const LocalTensor<int32_t>& out, const LocalTensor<int32_t>& a, const int32_t& scalar,  \
                   const int32_t& count) {                                                                 \
    detail::unary(#name, out, a, count, [scalar](int32_t x) { return static_cast<int32_t>(expression); }); \
  }
HPMOE_EMULATOR_OF_INT32(Adds, static_cast<uint32_t>(x) + static_cast<uint32_t>(scalar))
HPMOE_EMULATOR_OF_INT32(Muls, static_cast<uint32_t>(x) * static_cast<uint32_t>(scalar))
#undef HPMOE_EMULATOR_OF_INT32

// On an A2, only words of 16 bits.
#define HPMOE_EMULATOR_BITS(name, expression)                                                                          \
  inline void name(const LocalTensor<uint16_t>& out, const LocalTensor<uint16_t>& a, const LocalTensor<uint16_t>& b,   \
                   const int32_t& count) {                                                                             \
    detail::binary(#name, out, a, b, count, [](uint16_t x, uint16_t y) { return static_cast<uint16_t>(expression); }); \
  }
HPMOE_EMULATOR_BITS(And, x& y)
HPMOE_EMULATOR_BITS(Or, x | y)
#undef HPMOE_EMULATOR_BITS

// A signed shift to the right copies the sign.
template <class T>
void ShiftRight(const LocalTensor<T>& out, const LocalTensor<T>& a, const T& scalar, const int32_t& count) {
  static_assert(std::is_same_v<T, int32_t> || std::is_same_v<T, uint32_t>, "words that the kernel shifts");
  emulator::require(scalar >= 0 && scalar < 32, "ShiftRight: by ", scalar, " bits");
  detail::unary("ShiftRight", out, a, count, [scalar](T x) { return static_cast<T>(x >> scalar); });
}

inline void Cast(const LocalTensor<float>& out, const LocalTensor<int32_t>& a, const RoundMode& mode, const uint32_t count) {
  emulator::require(mode == RoundMode::CAST_RINT, "Cast: the round mode does not fit");
  emulator::Core& core = emulator::current();
  detail::vector_work(
      "Cast", count,
      [=, &core] {
        const int32_t* x = detail::operand(core, a, count, "Cast");
        std::copy_n(x, count, detail::operand(core, out, count, "Cast"));
      },
      out, a);
}
inline void Cast(const LocalTensor<int32_t>& out, const LocalTensor<float>& a, const RoundMode& mode, const uint32_t count) {
  emulator::require(mode == RoundMode::CAST_RINT, "Cast: the round mode does not fit");
  emulator::Core& core = emulator::current();
  detail::vector_work(
      "Cast", count,
      [=, &core] {
        const float* x = detail::operand(core, a, count, "Cast");
        int32_t* z = detail::operand(core, out, count, "Cast");
        for (uint32_t i = 0; i < count; ++i) {
          const float whole = std::nearbyint(x[i]);
          z[i] = whole >= 2147483648.0f    ? std::numeric_limits<int32_t>::max()
                 : whole >= -2147483648.0f ? static_cast<int32_t>(whole)
                                           : std::numeric_limits<int32_t>::min();
        }
      },
      out, a);
}
// Saturates.
inline void Cast(const LocalTensor<int32_t>& out, const LocalTensor<int64_t>& a, const RoundMode& mode,
                 const uint32_t count) {
  emulator::require(mode == RoundMode::CAST_NONE, "Cast: the round mode does not fit");
  emulator::Core& core = emulator::current();
  detail::vector_work(
      "Cast", count,
      [=, &core] {
        const int64_t* x = detail::operand(core, a, count, "Cast");
        int32_t* z = detail::operand(core, out, count, "Cast");
        constexpr int64_t kLeast = std::numeric_limits<int32_t>::min(), kMost = std::numeric_limits<int32_t>::max();
        for (uint32_t i = 0; i < count; ++i) z[i] = static_cast<int32_t>(std::clamp(x[i], kLeast, kMost));
      },
      out, a);
}

// Sets out to first, first + 1, ...
inline void CreateVecIndex(LocalTensor<int32_t> out, const int32_t& first, uint32_t count) {
  emulator::Core& core = emulator::current();
  detail::vector_work(
      "CreateVecIndex", count,
      [=, &core] {
        int32_t* z = detail::operand(core, out, count, "CreateVecIndex");
        for (uint32_t i = 0; i < count; ++i) z[i] = first + static_cast<int32_t>(i);
      },
      out);
}

// Copies whole blocks of 32 bytes from UB to UB.
template <class T>
void DataCopy(const LocalTensor<T>& to, const LocalTensor<T>& from, const uint32_t count) {
  const uint64_t bytes = uint64_t{count} * sizeof(T);
  emulator::require(bytes % 32 == 0, "DataCopy: ", bytes, " bytes are no multiple of 32");
  emulator::Core& core = emulator::current();
  detail::vector_work(
      "DataCopy", count,
      [=, &core] {
        const uint8_t* in = from.bytes(core, bytes, "DataCopy");
        std::copy_n(in, bytes, to.bytes(core, bytes, "DataCopy"));
      },
      to, from);
}

}  // namespace AscendC

// Vector instructions on UB: element by element, casts, and sums.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "copies.h"

namespace AscendC {

enum class RoundMode : uint8_t { CAST_NONE = 0, CAST_RINT, CAST_FLOOR, CAST_CEIL, CAST_ROUND, CAST_TRUNC, CAST_ODD };

namespace detail {

template <class T>
T* operand(twin::Core& core, const LocalTensor<T>& tensor, int64_t count, const char* what) {
  return reinterpret_cast<T*>(tensor.bytes(core, static_cast<uint64_t>(count) * sizeof(T), what));
}

template <class T, class... Tensors>
void vector_work(const char* what, int64_t count, std::function<void()> body, const LocalTensor<T>& first,
                 const Tensors&... rest) {
  twin::Core& core = twin::current();
  core.need(false, what);
  twin::require(count > 0, what, ": count is ", count);
  twin::require(((first.memory() == twin::Memory::UB) && ... && (rest.memory() == twin::Memory::UB)), what, " works on UB");
  core.clock.vector(count * static_cast<int64_t>(sizeof(T)));
  core.work(PIPE_V, what, [&core, count, body = std::move(body)] {
    body();
    core.counts.vector_bytes += count * static_cast<int64_t>(sizeof(T));
  });
}

template <class T, class Function>
void binary(const char* what, const LocalTensor<T>& out, const LocalTensor<T>& a, const LocalTensor<T>& b, int64_t count,
            Function f) {
  twin::Core& core = twin::current();
  vector_work(
      what, count,
      [=, &core] {
        const T *x = operand(core, a, count, what), *y = operand(core, b, count, what);
        T* z = operand(core, out, count, what);
        for (int64_t i = 0; i < count; ++i) z[i] = f(x[i], y[i]);
      },
      out, a, b);
}

template <class T, class Function>
void unary(const char* what, const LocalTensor<T>& out, const LocalTensor<T>& a, int64_t count, Function f) {
  twin::Core& core = twin::current();
  vector_work(
      what, count,
      [=, &core] {
        const T* x = operand(core, a, count, what);
        T* z = operand(core, out, count, what);
        for (int64_t i = 0; i < count; ++i) z[i] = f(x[i]);
      },
      out, a);
}

}  // namespace detail

#define HPMOE_TWIN_BINARY(name, expression)                                                                      \
  template <class T>                                                                                             \
  void name(const LocalTensor<T>& out, const LocalTensor<T>& a, const LocalTensor<T>& b, const int32_t& count) { \
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, int32_t>, "there is no bfloat16 arithmetic");    \
    detail::binary(#name, out, a, b, count, [](T x, T y) -> T { return expression; });                           \
  }
HPMOE_TWIN_BINARY(Add, x + y)
HPMOE_TWIN_BINARY(Sub, x - y)
HPMOE_TWIN_BINARY(Mul, x* y)
HPMOE_TWIN_BINARY(Div, x / y)
HPMOE_TWIN_BINARY(Max, x > y ? x : y)
HPMOE_TWIN_BINARY(Min, x < y ? x : y)
#undef HPMOE_TWIN_BINARY

#define HPMOE_TWIN_UNARY(name, expression)                                              \
  template <class T>                                                                    \
  void name(const LocalTensor<T>& out, const LocalTensor<T>& a, const int32_t& count) { \
    static_assert(std::is_same_v<T, float>, "float32");                                 \
    detail::unary(#name, out, a, count, [](T x) -> T { return expression; });           \
  }
HPMOE_TWIN_UNARY(Exp, std::exp(x))
HPMOE_TWIN_UNARY(Ln, std::log(x))
HPMOE_TWIN_UNARY(Abs, std::fabs(x))
HPMOE_TWIN_UNARY(Sqrt, std::sqrt(x))
#undef HPMOE_TWIN_UNARY

#define HPMOE_TWIN_SCALAR(name, expression)                                                              \
  template <class T>                                                                                     \
  void name(const LocalTensor<T>& out, const LocalTensor<T>& a, const T& scalar, const int32_t& count) { \
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, int32_t>, "arithmetic the kernel does"); \
    detail::unary(#name, out, a, count, [scalar](T x) -> T { return expression; });                      \
  }
HPMOE_TWIN_SCALAR(Adds, x + scalar)
HPMOE_TWIN_SCALAR(Muls, x* scalar)
HPMOE_TWIN_SCALAR(Mins, x > scalar ? scalar : x)
HPMOE_TWIN_SCALAR(Maxs, x < scalar ? scalar : x)
#undef HPMOE_TWIN_SCALAR

// out += a * scalar
template <class T, class U>
void Axpy(const LocalTensor<T>& out, const LocalTensor<U>& a, const U& scalar, const int32_t& count) {
  static_assert(std::is_same_v<T, float> && std::is_same_v<U, float>, "float32");
  detail::binary("Axpy", out, out, a, count, [scalar](float x, float y) { return x + y * scalar; });
}

template <class T>
void Duplicate(const LocalTensor<T>& out, const T& scalar, const int32_t& count) {
  twin::Core& core = twin::current();
  detail::vector_work(
      "Duplicate", count, [=, &core] { std::fill_n(detail::operand(core, out, count, "Duplicate"), count, scalar); }, out);
}

// Whole numbers of float32.
inline void Cast(const LocalTensor<float>& out, const LocalTensor<float>& a, const RoundMode& mode, const uint32_t count) {
  twin::require(mode == RoundMode::CAST_RINT || mode == RoundMode::CAST_FLOOR, "Cast: the round mode does not fit");
  const bool floors = mode == RoundMode::CAST_FLOOR;
  detail::unary("Cast", out, a, count, [floors](float x) { return floors ? std::floor(x) : std::nearbyint(x); });
}

enum class CMPMODE : uint8_t { LT = 0, GT, EQ, LE, GE, NE };
enum class SELMODE : uint8_t { VSEL_CMPMASK_SPR = 0, VSEL_TENSOR_SCALAR_MODE, VSEL_TENSOR_TENSOR_MODE };

struct BinaryRepeatParams {
  BinaryRepeatParams(uint8_t dstBlk, uint8_t src0Blk, uint8_t src1Blk, uint8_t dstRep, uint8_t src0Rep, uint8_t src1Rep)
      : is_dense(dstBlk == 1 && src0Blk == 1 && src1Blk == 1 && dstRep == 8 && src0Rep == 8 && src1Rep == 8) {}
  bool is_dense;
};

namespace detail {

constexpr int kRepeatFloats = 64;

inline bool compares(CMPMODE mode, float x, float y) {
  switch (mode) {
    case CMPMODE::LT: return x < y;
    case CMPMODE::GT: return x > y;
    case CMPMODE::EQ: return x == y;
    case CMPMODE::LE: return x <= y;
    case CMPMODE::GE: return x >= y;
    case CMPMODE::NE: return x != y;
  }
  return false;
}

}  // namespace detail

// One repeat of 64, into the register that Select reads.
inline void Compare(const LocalTensor<float>& a, const LocalTensor<float>& b, CMPMODE mode, const uint64_t mask,
                    const BinaryRepeatParams& p) {
  twin::require(mask == detail::kRepeatFloats && p.is_dense, "Compare: the kernel compares whole repeats");
  twin::Core& core = twin::current();
  detail::vector_work(
      "Compare", detail::kRepeatFloats,
      [=, &core] {
        const float* x = detail::operand(core, a, detail::kRepeatFloats, "Compare");
        const float* y = detail::operand(core, b, detail::kRepeatFloats, "Compare");
        core.compared = 0;
        for (int i = 0; i < detail::kRepeatFloats; ++i) core.compared |= uint64_t{detail::compares(mode, x[i], y[i])} << i;
      },
      a, b);
}
template <class T, SELMODE mode>
void Select(const LocalTensor<T>& out, const LocalTensor<T>& yes, const LocalTensor<T>& no, uint8_t repeats,
            const BinaryRepeatParams& p) {
  static_assert(std::is_same_v<T, float> && mode == SELMODE::VSEL_CMPMASK_SPR, "choices the kernel makes");
  twin::require(repeats == 1 && p.is_dense, "Select: the kernel chooses in whole repeats");
  twin::Core& core = twin::current();
  detail::vector_work(
      "Select", detail::kRepeatFloats,
      [=, &core] {
        const T* x = detail::operand(core, yes, detail::kRepeatFloats, "Select");
        const T* y = detail::operand(core, no, detail::kRepeatFloats, "Select");
        T* z = detail::operand(core, out, detail::kRepeatFloats, "Select");
        for (int i = 0; i < detail::kRepeatFloats; ++i) z[i] = (core.compared >> i & 1) != 0 ? x[i] : y[i];
      },
      out, yes, no);
}

template <class T, class U>
void Cast(const LocalTensor<T>& out, const LocalTensor<U>& a, const RoundMode& mode, const uint32_t count) {
  static_assert(sizeof(T) != sizeof(U), "casts between float32 and the half-precision types");
  constexpr bool widens = sizeof(T) > sizeof(U);
  twin::require(mode == (widens ? RoundMode::CAST_NONE : RoundMode::CAST_RINT), "Cast: the round mode does not fit");
  twin::Core& core = twin::current();
  const bool saturates = core.saturates;
  detail::vector_work(
      "Cast", count,
      [=, &core] {
        const U* x = detail::operand(core, a, count, "Cast");
        T* z = detail::operand(core, out, count, "Cast");
        if constexpr (widens) {
          twin::widen(x, count, z);
        } else {
          twin::narrow(x, count, z, saturates);
        }
      },
      out, a);
}

namespace detail {

// out[0] = what f makes of a, two by two, in the order of a tree; `work` holds what is between, so many numbers a repeat.
// The scalar unit writes the result: it waits for the vector unit, and others for it, by flags that are free.
template <class T, class Function>
void reduce(const char* what, const LocalTensor<T>& out, const LocalTensor<T>& a, const LocalTensor<T>& work, int32_t count,
            int32_t kept, Function f) {
  static_assert(std::is_same_v<T, float>, "float32");
  twin::Core& core = twin::current();
  for (const HardEvent event : {HardEvent::V_S, HardEvent::S_V, HardEvent::S_MTE3}) free_flag(static_cast<int>(event), what);
  vector_work(
      what, count,
      [=, &core] {
        const float* x = operand(core, a, count, what);
        std::vector<float> part(x, x + count);
        const int32_t num_kept = (kept * ((count + 63) / 64) + 7) / 8 * 8;
        std::fill_n(operand(core, work, num_kept, what), num_kept, std::numeric_limits<float>::quiet_NaN());
        while (part.size() > 1) {
          for (size_t i = 0; i + 1 < part.size(); i += 2) part[i / 2] = f(part[i], part[i + 1]);
          if (part.size() % 2) part[part.size() / 2] = part.back();
          part.resize((part.size() + 1) / 2);
        }
        operand(core, out, 1, what)[0] = part[0];
      },
      out, a, work);
}

}  // namespace detail

template <class T>
void ReduceSum(const LocalTensor<T>& out, const LocalTensor<T>& a, const LocalTensor<T>& work, const int32_t count) {
  detail::reduce("ReduceSum", out, a, work, count, 1, [](float x, float y) { return x + y; });
}
template <class T>
void ReduceMax(const LocalTensor<T>& out, const LocalTensor<T>& a, const LocalTensor<T>& work, const int32_t count,
               bool with_index) {
  twin::require(!with_index, "ReduceMax: the kernel asks for no index");
  detail::reduce("ReduceMax", out, a, work, count, 2, [](float x, float y) { return x > y ? x : y; });
}

}  // namespace AscendC

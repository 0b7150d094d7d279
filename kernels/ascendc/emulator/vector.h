// Vector instructions on UB: element by element, casts, and sums.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "copies.h"
#include "core/numbers.h"

namespace AscendC {

enum class RoundMode : uint8_t { CAST_NONE = 0, CAST_RINT, CAST_FLOOR, CAST_CEIL, CAST_ROUND, CAST_TRUNC, CAST_ODD };

namespace detail {

template <class T>
T* operand(emulator::Core& core, const LocalTensor<T>& tensor, int64_t count, const char* what) {
  return reinterpret_cast<T*>(tensor.bytes(core, static_cast<uint64_t>(count) * sizeof(T), what));
}

template <class T, class... Tensors>
void vector_work(const char* what, int64_t count, std::function<void()> body, const LocalTensor<T>& first,
                 const Tensors&... rest) {
  emulator::Core& core = emulator::current();
  core.need(false, what);
  emulator::require(count > 0, what, ": count is ", count);
  emulator::require(((first.memory() == emulator::Memory::UB) && ... && (rest.memory() == emulator::Memory::UB)), what,
                    " works on UB");
  core.clock.vector(count * static_cast<int64_t>(sizeof(T)));
  core.work(PIPE_V, what, [&core, count, body = std::move(body)] {
    body();
    core.counts.vector_bytes += count * static_cast<int64_t>(sizeof(T));
  });
}

template <class T, class Function, class... Inputs>
void set_each(T* out, int64_t count, Function f, const Inputs*... from) {
  for (int64_t i = 0; i < count; ++i) out[i] = f(from[i]...);
}

// Computes out[i] = f(from[i]...).
template <class T, class Function, class... Inputs>
void elementwise(const char* what, int64_t count, Function f, const LocalTensor<T>& out, const Inputs&... from) {
  emulator::Core& core = emulator::current();
  vector_work(
      what, count, [=, &core] { set_each(operand(core, out, count, what), count, f, operand(core, from, count, what)...); },
      out, from...);
}

inline float sum(float x, float y) { return x + y; }
inline int32_t sum(int32_t x, int32_t y) { return hpmoe::wrapping_sum(x, y); }
inline float product(float x, float y) { return x * y; }
inline int32_t product(int32_t x, int32_t y) { return hpmoe::wrapping_product(x, y); }
template <class T>
T difference(T x, T y) {
  return sum(x, product(y, T{-1}));
}

}  // namespace detail

#define HPMOE_EMULATOR_BINARY(name, expression)                                                                  \
  template <class T>                                                                                             \
  void name(const LocalTensor<T>& out, const LocalTensor<T>& a, const LocalTensor<T>& b, const int32_t& count) { \
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, int32_t>, "there is no bfloat16 arithmetic");    \
    detail::elementwise(#name, count, [](T x, T y) -> T { return expression; }, out, a, b);                      \
  }
HPMOE_EMULATOR_BINARY(Add, detail::sum(x, y))
HPMOE_EMULATOR_BINARY(Sub, detail::difference(x, y))
HPMOE_EMULATOR_BINARY(Mul, detail::product(x, y))
HPMOE_EMULATOR_BINARY(Div, x / y)
HPMOE_EMULATOR_BINARY(Max, x > y ? x : y)
HPMOE_EMULATOR_BINARY(Min, x < y ? x : y)
#undef HPMOE_EMULATOR_BINARY

#define HPMOE_EMULATOR_UNARY(name, expression)                                          \
  template <class T>                                                                    \
  void name(const LocalTensor<T>& out, const LocalTensor<T>& a, const int32_t& count) { \
    static_assert(std::is_same_v<T, float>, "float32");                                 \
    detail::elementwise(#name, count, [](T x) -> T { return expression; }, out, a);     \
  }
HPMOE_EMULATOR_UNARY(Exp, std::exp(x))
HPMOE_EMULATOR_UNARY(Ln, std::log(x))
HPMOE_EMULATOR_UNARY(Abs, std::fabs(x))
HPMOE_EMULATOR_UNARY(Sqrt, std::sqrt(x))
#undef HPMOE_EMULATOR_UNARY

#define HPMOE_EMULATOR_SCALAR(name, expression)                                                          \
  template <class T>                                                                                     \
  void name(const LocalTensor<T>& out, const LocalTensor<T>& a, const T& scalar, const int32_t& count) { \
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, int32_t>, "arithmetic the kernel does"); \
    detail::elementwise(#name, count, [scalar](T x) -> T { return expression; }, out, a);                \
  }
HPMOE_EMULATOR_SCALAR(Adds, detail::sum(x, scalar))
HPMOE_EMULATOR_SCALAR(Muls, detail::product(x, scalar))
HPMOE_EMULATOR_SCALAR(Mins, x > scalar ? scalar : x)
HPMOE_EMULATOR_SCALAR(Maxs, x < scalar ? scalar : x)
#undef HPMOE_EMULATOR_SCALAR

// Computes out += a * scalar.
template <class T, class U>
void Axpy(const LocalTensor<T>& out, const LocalTensor<U>& a, const U& scalar, const int32_t& count) {
  static_assert(std::is_same_v<T, float> && std::is_same_v<U, float>, "float32");
  detail::elementwise("Axpy", count, [scalar](float x, float y) { return x + y * scalar; }, out, out, a);
}

template <class T>
void Duplicate(const LocalTensor<T>& out, const T& scalar, const int32_t& count) {
  detail::elementwise("Duplicate", count, [scalar] { return scalar; }, out);
}

// Rounds to integers.
inline void Cast(const LocalTensor<float>& out, const LocalTensor<float>& a, const RoundMode& mode, const uint32_t count) {
  emulator::require(mode == RoundMode::CAST_RINT || mode == RoundMode::CAST_FLOOR, "Cast: the round mode does not fit");
  const bool floors = mode == RoundMode::CAST_FLOOR;
  detail::elementwise("Cast", count, [floors](float x) { return floors ? std::floor(x) : std::nearbyint(x); }, out, a);
}

enum class CMPMODE : uint8_t { LT = 0, GT, EQ, LE, GE, NE };
enum class SELMODE : uint8_t { VSEL_CMPMASK_SPR = 0, VSEL_TENSOR_SCALAR_MODE, VSEL_TENSOR_TENSOR_MODE };

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

// Sets one bit for each number, lowest bit of a byte first, in whole steps of 256 bytes: whether holds(from[i]...).
template <class Function, class... Inputs>
void set_bits(const char* what, const LocalTensor<uint8_t>& out, uint32_t count, Function holds, const Inputs&... from) {
  emulator::require(count % kRepeatFloats == 0, what, ": ", count, " numbers are no multiple of 256 bytes");
  emulator::require(out.memory() == emulator::Memory::UB, what, " works on UB");
  emulator::Core& core = emulator::current();
  vector_work(
      what, count,
      [=, &core] {
        std::vector<uint8_t> found(count);
        set_each(found.data(), count, holds, operand(core, from, count, what)...);
        uint8_t* bits = operand(core, out, count / 8, what);
        std::fill_n(bits, count / 8, uint8_t{0});
        for (uint32_t i = 0; i < count; ++i) bits[i / 8] |= static_cast<uint8_t>(found[i] << i % 8);
      },
      from...);
}

}  // namespace detail

template <class T, class U>
void Compare(const LocalTensor<U>& out, const LocalTensor<T>& a, const LocalTensor<T>& b, CMPMODE mode, uint32_t count) {
  static_assert(std::is_same_v<T, float> && std::is_same_v<U, uint8_t>, "comparisons the kernel makes");
  detail::set_bits("Compare", out, count, [mode](T x, T y) { return detail::compares(mode, x, y); }, a, b);
}
template <class T, class U>
void Select(const LocalTensor<T>& out, const LocalTensor<U>& mask, const LocalTensor<T>& yes, const LocalTensor<T>& no,
            SELMODE mode, uint32_t count) {
  static_assert(std::is_same_v<T, float> && std::is_same_v<U, uint8_t>, "choices the kernel makes");
  emulator::require(mode == SELMODE::VSEL_TENSOR_TENSOR_MODE, "Select: a bit for each element");
  emulator::require(mask.memory() == emulator::Memory::UB, "Select works on UB");
  emulator::Core& core = emulator::current();
  detail::vector_work(
      "Select", count,
      [=, &core] {
        const T *x = detail::operand(core, yes, count, "Select"), *y = detail::operand(core, no, count, "Select");
        const uint8_t* bits = detail::operand(core, mask, (count + 7) / 8, "Select");
        T* z = detail::operand(core, out, count, "Select");
        for (uint32_t i = 0; i < count; ++i) z[i] = (bits[i / 8] >> i % 8 & 1) != 0 ? x[i] : y[i];
      },
      out, yes, no);
}

template <class T, class U>
void Cast(const LocalTensor<T>& out, const LocalTensor<U>& a, const RoundMode& mode, const uint32_t count) {
  static_assert(sizeof(T) != sizeof(U), "casts between float32 and the half-precision types");
  constexpr bool widens = sizeof(T) > sizeof(U);
  emulator::require(mode == (widens ? RoundMode::CAST_NONE : RoundMode::CAST_RINT), "Cast: the round mode does not fit");
  emulator::Core& core = emulator::current();
  const bool saturates = core.saturates;
  detail::vector_work(
      "Cast", count,
      [=, &core] {
        const U* x = detail::operand(core, a, count, "Cast");
        T* z = detail::operand(core, out, count, "Cast");
        if constexpr (widens) {
          emulator::widen(x, count, z);
        } else {
          emulator::narrow(x, count, z, saturates);
        }
      },
      out, a);
}

namespace detail {

// Computes out[0] by folding a with f pairwise, in the order of a tree; `work` needs a number for each repeat. The scalar
// unit writes the result, ordered by free flags.
template <class T, class Function>
void reduce(const char* what, const LocalTensor<T>& out, const LocalTensor<T>& a, const LocalTensor<T>& work, int32_t count,
            int32_t kept, Function f) {
  static_assert(std::is_same_v<T, float>, "float32");
  emulator::Core& core = emulator::current();
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
  emulator::require(!with_index, "ReduceMax: the kernel asks for no index");
  detail::reduce("ReduceMax", out, a, work, count, 2, [](float x, float y) { return x > y ? x : y; });
}

enum class ReduceOrder { ORDER_VALUE_INDEX = 0, ORDER_INDEX_VALUE, ORDER_ONLY_VALUE, ORDER_ONLY_INDEX };

namespace detail {

// Computes one result for each of `repeats` runs of `mask` numbers, which begin `step` blocks of 32 bytes apart.
template <class T, class Function>
void reduce_repeats(const char* what, const LocalTensor<T>& out, const LocalTensor<T>& a, int32_t mask, int32_t repeats,
                    int32_t step, Function f) {
  static_assert(std::is_same_v<T, float>, "float32");
  emulator::require(mask > 0 && mask <= kRepeatFloats && repeats > 0 && repeats <= 255, what, ": ", repeats, " runs of ",
                    mask);
  emulator::Core& core = emulator::current();
  vector_work(
      what, int64_t{repeats} * mask,
      [=, &core] {
        const int64_t pitch = int64_t{step} * 8;
        const float* x = operand(core, a, (repeats - 1) * pitch + mask, what);
        float* z = operand(core, out, repeats, what);
        for (int32_t r = 0; r < repeats; ++r) {
          float result = x[r * pitch];
          for (int32_t i = 1; i < mask; ++i) result = f(result, x[r * pitch + i]);
          z[r] = result;
        }
      },
      out, a);
}

}  // namespace detail

template <class T>
void WholeReduceMax(const LocalTensor<T>& out, const LocalTensor<T>& a, const int32_t mask, const int32_t repeats,
                    const int32_t out_step, const int32_t block_step, const int32_t step, ReduceOrder order) {
  emulator::require(order == ReduceOrder::ORDER_ONLY_VALUE && out_step == 1 && block_step == 1,
                    "WholeReduceMax: the kernel asks for results side by side");
  detail::reduce_repeats("WholeReduceMax", out, a, mask, repeats, step, [](float x, float y) { return x > y ? x : y; });
}
template <class T>
void WholeReduceSum(const LocalTensor<T>& out, const LocalTensor<T>& a, const int32_t mask, const int32_t repeats,
                    const int32_t out_step, const int32_t block_step, const int32_t step) {
  emulator::require(out_step == 1 && block_step == 1, "WholeReduceSum: the kernel asks for results side by side");
  detail::reduce_repeats("WholeReduceSum", out, a, mask, repeats, step, [](float x, float y) { return x + y; });
}

}  // namespace AscendC

// Vector instructions on UB that compute masks of numbers, and gather the numbers that a mask selects.
#pragma once

#include "vector.h"

namespace AscendC {

struct GatherMaskParams {
  GatherMaskParams() = default;
  GatherMaskParams(const uint8_t src0BlockStrideIn, const uint16_t repeatTimesIn, const uint16_t src0RepeatStrideIn,
                   const uint8_t src1RepeatStrideIn)
      : src0BlockStride(src0BlockStrideIn),
        repeatTimes(repeatTimesIn),
        src0RepeatStride(src0RepeatStrideIn),
        src1RepeatStride(src1RepeatStrideIn) {}
  uint8_t src0BlockStride = 1;
  uint16_t repeatTimes = 0, src0RepeatStride = 8;
  uint8_t src1RepeatStride = 8;
};

// Compares integers only for equality.
template <class T, class U>
void Compares(const LocalTensor<U>& out, const LocalTensor<T>& a, const T scalar, CMPMODE mode, uint32_t count) {
  static_assert(std::is_same_v<T, int32_t> && std::is_same_v<U, uint8_t>, "comparisons the kernel makes");
  emulator::require(mode == CMPMODE::EQ, "Compares: numbers of 32 bits are the same or not");
  detail::set_bits("Compares", out, count, [scalar](T x) { return x == scalar; }, a);
}

// Gathers the numbers among the first `count` whose bit is set, and counts them; the scalar unit must wait for the vector
// unit before it reads the count. Memory after them is undefined.
template <class T, class U>
void GatherMask(const LocalTensor<T>& out, const LocalTensor<T>& a, const LocalTensor<U>& pattern, const bool counts,
                const uint32_t count, const GatherMaskParams& p, uint64_t& kept) {
  static_assert(sizeof(T) == 4 && std::is_same_v<U, uint32_t>, "numbers the kernel gathers");
  emulator::require(counts && count > 0 && p.repeatTimes == 1 && p.src0BlockStride == 1,
                    "GatherMask: the kernel gathers of one run of numbers");
  emulator::Core& core = emulator::current();
  emulator::require(pattern.memory() == emulator::Memory::UB, "GatherMask works on UB");
  bool is_done = false;
  detail::vector_work(
      "GatherMask", count,
      [=, &core, &kept, &is_done] {
        const T* x = detail::operand(core, a, count, "GatherMask");
        const uint32_t* bits = detail::operand(core, pattern, (count + 31) / 32, "GatherMask");
        std::vector<T> found;
        for (uint32_t i = 0; i < count; ++i)
          if ((bits[i / 32] >> i % 32 & 1) != 0) found.push_back(x[i]);
        std::copy(found.begin(), found.end(), detail::operand(core, out, static_cast<int64_t>(found.size()), "GatherMask"));
        kept = found.size();
        is_done = true;
      },
      out, a);
  core.wait_until([&is_done] { return is_done; }, "GatherMask");
}

}  // namespace AscendC

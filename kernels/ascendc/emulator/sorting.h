// Sort32 and MrgSort, which stably sort pairs of a number and a word by the number, greatest first; and Gather. A pair
// has 8 bytes: the number, then the word.
#pragma once

#include "vector.h"

namespace AscendC {

template <class T>
struct MrgSortSrcList {
  MrgSortSrcList() = default;
  MrgSortSrcList(const LocalTensor<T> a, const LocalTensor<T> b, const LocalTensor<T> c, const LocalTensor<T> d)
      : src1(a), src2(b), src3(c), src4(d) {}
  LocalTensor<T> src1, src2, src3, src4;
};

struct MrgSort4Info {
  MrgSort4Info() = default;
  MrgSort4Info(const uint16_t lengths[4], const bool suspends, const uint16_t valid, const uint16_t repeats)
      : ifExhaustedSuspension(suspends), validBit(valid), repeatTimes(static_cast<uint8_t>(repeats)) {
    std::copy_n(lengths, 4, elementLengths);
  }
  uint16_t elementLengths[4] = {};
  bool ifExhaustedSuspension = false;
  uint16_t validBit = 0;
  uint8_t repeatTimes = 1;
};

namespace detail {

struct SortedPair {
  float number;
  uint32_t word;
};

// Documents define no order for NaN, so NaN is a fault.
inline void check_numbers(const SortedPair* pairs, int64_t count, const char* what) {
  for (int64_t i = 0; i < count; ++i) emulator::require(pairs[i].number == pairs[i].number, what, " of a NaN");
}

inline void sort_pairs(SortedPair* pairs, int64_t count) {
  std::stable_sort(pairs, pairs + count, [](const SortedPair& x, const SortedPair& y) { return x.number > y.number; });
}

}  // namespace detail

// Sorts 32 pairs at a time.
inline void Sort32(const LocalTensor<float>& out, const LocalTensor<float>& numbers, const LocalTensor<uint32_t>& words,
                   const int32_t repeats) {
  emulator::require(repeats >= 1 && repeats <= 255, "Sort32: ", repeats, " repeats");
  emulator::Core& core = emulator::current();
  const uint64_t count = 32 * uint64_t(repeats);
  detail::vector_work(
      "Sort32", 2 * static_cast<int64_t>(count),
      [=, &core] {
        const auto* x = reinterpret_cast<const float*>(numbers.bytes(core, 4 * count, "Sort32", 128));
        const auto* w = reinterpret_cast<const uint32_t*>(words.bytes(core, 4 * count, "Sort32", 128));
        auto* z = reinterpret_cast<detail::SortedPair*>(out.bytes(core, 8 * count, "Sort32", 256));
        std::vector<detail::SortedPair> pairs(count);
        for (uint64_t i = 0; i < count; ++i) pairs[i] = {x[i], w[i]};
        detail::check_numbers(pairs.data(), static_cast<int64_t>(count), "Sort32");
        for (uint64_t i = 0; i < count; i += 32) detail::sort_pairs(&pairs[i], 32);
        std::copy(pairs.begin(), pairs.end(), z);
      },
      out, numbers, words);
}

// Merges two to four sorted lists into one; merges several groups of four if all lists are adjacent and equally long.
inline void MrgSort(const LocalTensor<float>& out, const MrgSortSrcList<float>& lists, const MrgSort4Info& info) {
  const LocalTensor<float> from[] = {lists.src1, lists.src2, lists.src3, lists.src4};
  const int num_lists = info.validBit == 3 ? 2 : info.validBit == 7 ? 3 : 4;
  emulator::require(info.validBit == 3 || info.validBit == 7 || info.validBit == 15, "MrgSort: validBit is ", info.validBit);
  emulator::require(!info.ifExhaustedSuspension && info.repeatTimes >= 1, "MrgSort: the kernel merges lists to their ends");
  uint32_t one = 0;
  for (int i = 0; i < num_lists; ++i) {
    emulator::require(info.elementLengths[i] <= 4095, "MrgSort: a list of ", info.elementLengths[i]);
    const bool follows = from[i].offset() == from[0].offset() + 8 * one;
    emulator::require(
        info.repeatTimes == 1 || (num_lists == 4 && follows && info.elementLengths[i] == info.elementLengths[0]),
        "MrgSort: lists that are merged in several fours follow each other");
    one += info.elementLengths[i];
  }
  emulator::Core& core = emulator::current();
  const uint32_t total = one * info.repeatTimes;
  detail::vector_work(
      "MrgSort", 2 * static_cast<int64_t>(total),
      [=, &core] {
        std::vector<detail::SortedPair> pairs;
        for (uint32_t r = 0; r < info.repeatTimes; ++r) {
          const size_t begin = pairs.size();
          for (int i = 0; i < num_lists; ++i) {
            const uint32_t length = info.elementLengths[i];
            const auto* list = reinterpret_cast<const detail::SortedPair*>(
                from[i][2 * r * one].bytes(core, uint64_t{8} * length, "MrgSort", 8));
            emulator::require(
                std::is_sorted(list, list + length, [](const auto& x, const auto& y) { return x.number > y.number; }),
                "MrgSort of a list that is not sorted");
            pairs.insert(pairs.end(), list, list + length);
          }
          detail::check_numbers(&pairs[begin], one, "MrgSort");
          detail::sort_pairs(&pairs[begin], one);
        }
        const bool is_apart = from[0].offset() + 8 * total <= out.offset() || out.offset() + 8 * total <= from[0].offset();
        emulator::require(is_apart, "MrgSort: a list lies where the result goes");
        std::copy(pairs.begin(), pairs.end(),
                  reinterpret_cast<detail::SortedPair*>(out.bytes(core, 8 * total, "MrgSort", 32)));
      },
      out, from[0]);
}

// Computes out[i] = the element of `from` at byte base + offset[i].
template <class T>
void Gather(const LocalTensor<T>& out, const LocalTensor<T>& from, const LocalTensor<uint32_t>& offsets, const uint32_t base,
            const uint32_t count) {
  static_assert(sizeof(T) == 4, "words that the kernel gathers");
  emulator::Core& core = emulator::current();
  emulator::require(out.offset() != from.offset(), "Gather: the result lies where the elements do");
  detail::vector_work(
      "Gather", count,
      [=, &core] {
        const uint32_t* at = detail::operand(core, offsets, count, "Gather");
        T* z = detail::operand(core, out, count, "Gather");
        for (uint32_t i = 0; i < count; ++i) {
          const uint32_t offset = base + at[i];
          emulator::require(offset % sizeof(T) == 0, "Gather: an offset of ", offset, " bytes");
          std::memcpy(z + i, from[offset / sizeof(T)].bytes(core, sizeof(T), "Gather", sizeof(T)), sizeof(T));
        }
      },
      out, from, offsets);
}

}  // namespace AscendC

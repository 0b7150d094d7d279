// Counts of bytes moved and work done by the cores of a launch; tests compare them with the cost rules.
#pragma once

#include <cstdint>

namespace emulator {

// The effort of one AIV, by clock.h: words of UB and of the scalar unit's cache that it accesses.
struct Effort {
  int64_t cycles, scalar_words, cached_lines, vector_instructions, vector_steps, copies, waits_for_copies;
};

// For all AIC, or all AIV: decoded tasks, words that the scalar unit read for decoding, lines that its cache fetched for
// it, and cycles of the clock.
struct Decoding {
  int64_t tasks, words, lines, cycles;
};

// Bytes moved by copies, by size of the copy: from 2^i to 2^(i+1) - 1.
struct Sizes {
  static constexpr int kCount = 24;
  int64_t bytes[kCount];

  void add(int64_t of_one) {
    int size = 0;
    while (size + 1 < kCount && of_one >> (size + 1) != 0) ++size;
    bytes[size] += of_one;
  }
};

// Bytes by path, without polls of counters. cube_flops: of whole fractals. vector_bytes: 256 of them take a cycle.
// l0_loads: instructions that load L0. busiest: the AIV with the longest estimate. plan: the plan of the image that the
// launch selected and its status refers to. system_us: microseconds of the system counter.
struct Counts {
  int64_t gm_to_ub, ub_to_gm, gm_to_l1, l1_to_gm, l1_to_l0a, l1_to_l0b, l0c_to_gm, cube_flops, vector_bytes;
  Effort busiest;
  Decoding aic, aiv;
  int64_t l0_loads;
  Sizes to_ub, from_ub, to_l1, from_l0c;
  int64_t plan, system_us;
};

}  // namespace emulator

// Running sums along a list in UB, by vector instructions: out[i] = list[0] + ... + list[i - 1].
//
// Each step adds to every sum the sum that is as many words earlier as it has terms. Vector operands begin at blocks of
// 32 bytes, so Gather aligns sums that are less than a block apart. Zeros precede the list.
#pragma once

#include "prologue_unit.h"

namespace hpmoe {

class RunningSums {
 public:
  static constexpr int32_t kMostTerms = 1024, kPad = kMostTerms / 2, kMostSums = kMostTerms + kLane,
                           kWords = 2 * (kPad + kMostSums) + kMostSums;

  __aicore__ inline RunningSums(const Words& capacity, int32_t num_terms)
      : num_terms_(num_terms), num_sums_(round_up(num_terms + 1, kBlockBytes / 4)) {
    sums_[0] = capacity;
    sums_[1] = capacity[kPad + kMostSums];
    offsets_ = capacity[2 * (kPad + kMostSums)];
  }

  // Call it once, before the first list.
  __aicore__ inline void init() {
    for (const Words& sums : sums_) AscendC::Duplicate(sums, 0, kPad);
    AscendC::CreateVecIndex(offsets_, 0, num_sums_);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Muls(offsets_, offsets_, static_cast<int32_t>(sizeof(int32_t)), num_sums_);
  }

  // Memory for the list. The words after the list, up to the next block, are also read.
  __aicore__ inline Words list() const { return sums_[0][kPad]; }

  // Returns a sum for each term of the list, and the total after them.
  __aicore__ inline Words find() const {
    AscendC::PipeBarrier<PIPE_V>();
    bring(1, 0, 1);
    int32_t at = 1;
    for (int32_t terms = 1; terms < num_terms_; terms *= 2, at = 1 - at) {
      if (terms < kBlockBytes / 4) bring(1 - at, at, terms);
      const Words before = terms < kBlockBytes / 4 ? sums(1 - at) : sums_[at][kPad - terms];
      in_order::Add(sums(1 - at), sums(at), before, num_sums_);
    }
    return sums(at);
  }

 private:
  __aicore__ inline Words sums(int32_t i) const { return sums_[i][kPad]; }
  // Copies the sums that are `distance` words earlier.
  __aicore__ inline void bring(int32_t to, int32_t from, int32_t distance) const {
    in_order::Gather(sums(to), sums_[from], offsets_.ReinterpretCast<uint32_t>(),
                     static_cast<uint32_t>((kPad - distance) * sizeof(int32_t)), static_cast<uint32_t>(num_sums_));
  }

  const int32_t num_terms_, num_sums_;
  Words sums_[2], offsets_;  // sums after zeros
};

}  // namespace hpmoe

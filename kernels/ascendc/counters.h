// Counters in global memory: addresses, polls and waits.
//
// DMA adds to a counter in the shared L2. The scalar unit that polls a counter first drops its cached line. Counters only
// grow, and wrap: a threshold is met if counter minus threshold is not negative.
#pragma once

#include "image_reader.h"

namespace hpmoe {

enum class WaitEnd { MET, TIMEOUT, ABORTED };

struct Nothing {
  __aicore__ inline void operator()() const {}
};

__aicore__ inline Code code_of(WaitEnd end) {
  return end == WaitEnd::MET ? Code::OK : end == WaitEnd::TIMEOUT ? Code::TIMEOUT : Code::ABORTED_PEER;
}

class Counters {
 public:
  __aicore__ inline void init(const LaunchArgs& args, int32_t ep_size) {
    base_ = args.counters;
    timeout_ = args.timeout_us * kCyclesPerUs;
    first_event_ = num_prologue_counters(ep_size);
  }
  // Index of a prologue counter. Events have indices from 0 on, prologue counters are negative.
  __aicore__ inline int32_t prologue(int32_t counter) const { return counter - first_event_; }
  __aicore__ inline uint64_t address(int32_t index) const {
    return base_ + static_cast<uint64_t>(first_event_ + index) * kCounterWords * sizeof(int32_t);
  }

  __aicore__ inline int32_t look(int32_t index) const {
    const AscendC::GlobalTensor<int32_t> counter = global_at<int32_t>(address(index));
    forget_line(counter);
    return counter.GetValue(0);
  }

  __aicore__ inline bool has_reached(int32_t index, int32_t target) const { return is_at_least(look(index), target); }

  // Waits until the counter has reached `target`, a core of this rank has failed, or time is up. Calls `meanwhile` after
  // each poll that does not end the wait.
  template <class Meanwhile>
  __aicore__ inline WaitEnd wait(int32_t index, int32_t target, Meanwhile meanwhile) const {
    const int64_t begin = AscendC::GetSystemCycle();
    for (int32_t looks = 1; !has_reached(index, target); ++looks) {
      meanwhile();
      if (looks % kLooksBetween != 0) continue;
      if (look(prologue(kFailed)) != 0) return WaitEnd::ABORTED;
      if (AscendC::GetSystemCycle() - begin > timeout_) return WaitEnd::TIMEOUT;
    }
    return WaitEnd::MET;
  }
  __aicore__ inline WaitEnd wait(int32_t index, int32_t target) const { return wait(index, target, Nothing()); }

 private:
  // All waiting cores share one counter of failures, so each core polls it only after this many polls of its own counter.
  static constexpr int32_t kLooksBetween = 16;

  uint64_t base_ = 0;
  int64_t timeout_ = 0;  // in cycles of the system counter
  int32_t first_event_ = 0;
};

}  // namespace hpmoe

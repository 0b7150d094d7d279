// Buffers that one pipe fills and another empties, in turn. Each has a flag that says it is full and one that it is free; a
// flag is set again only after it was awaited.
#pragma once

#include "device.h"

namespace hpmoe {

template <AscendC::HardEvent full, AscendC::HardEvent free, int32_t count>
class Ring {
 public:
  __aicore__ inline void init(AscendC::TPipe* pipe) {
    for (int32_t i = 0; i < count; ++i) {
      full_[i] = pipe->AllocEventID<full>();
      free_[i] = pipe->AllocEventID<free>();
      AscendC::SetFlag<free>(free_[i]);
    }
  }
  __aicore__ inline void end() {
    for (int32_t i = 0; i < count; ++i) AscendC::WaitFlag<free>(free_[i]);
  }

  // The pipe that fills waits until buffer `i` is free, and says when it is full.
  __aicore__ inline void wait_free(int32_t i) { AscendC::WaitFlag<free>(free_[i]); }
  __aicore__ inline void set_full(int32_t i) { AscendC::SetFlag<full>(full_[i]); }
  // The pipe that empties waits until it is full, and says when it is free.
  __aicore__ inline void wait_full(int32_t i) { AscendC::WaitFlag<full>(full_[i]); }
  __aicore__ inline void set_free(int32_t i) { AscendC::SetFlag<free>(free_[i]); }

 private:
  AscendC::TEventID full_[count], free_[count];
};

// One pipe goes on after all that another has done so far.
template <AscendC::HardEvent full, AscendC::HardEvent free>
class Gate {
 public:
  __aicore__ inline void init(AscendC::TPipe* pipe) { ring_.init(pipe); }
  __aicore__ inline void end() { ring_.end(); }
  __aicore__ inline void pass() {
    ring_.wait_free(next_);
    ring_.set_full(next_);
    ring_.wait_full(next_);
    ring_.set_free(next_);
    next_ = 1 - next_;
  }

 private:
  Ring<full, free, 2> ring_;
  int32_t next_ = 0;
};

}  // namespace hpmoe

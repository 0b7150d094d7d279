// Buffers that one pipe fills and another empties, in turn. Each has a flag "full" and a flag "free". A flag is set again
// only after a wait for it.
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

  // For the filling pipe: waits until buffer `i` is free; set_full() marks it full.
  __aicore__ inline void wait_free(int32_t i) { AscendC::WaitFlag<free>(free_[i]); }
  __aicore__ inline void set_full(int32_t i) { AscendC::SetFlag<full>(full_[i]); }
  // For the emptying pipe: waits until buffer `i` is full; set_free() marks it free.
  __aicore__ inline void wait_full(int32_t i) { AscendC::WaitFlag<full>(full_[i]); }
  __aicore__ inline void set_free(int32_t i) { AscendC::SetFlag<free>(free_[i]); }

 private:
  AscendC::TEventID full_[count], free_[count];
};

// Lets one pipe continue only after all earlier work of another.
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

// The buffers that this core has written since its pipes were last empty. Tasks of one queue are ordered without events,
// so a task that uses such a buffer must first wait until all writes are complete.
#pragma once

#include "frame.h"

namespace hpmoe {

class Unsettled {
 public:
  // Returns true if a task uses a buffer that tasks of another operation have written. Tasks of one operation write
  // different rows or columns and do not read them.
  __aicore__ inline bool touches(const Frame& frame) const {
    for (int32_t i = 0; i < frame.op.num_operands; ++i) {
      if (frame.op.operands[i].buffer < 0) continue;
      const uint64_t base = frame.base(i);
      for (int32_t w = 0; w < count_; ++w)
        if (written_[w].base == base && written_[w].op != frame.task.op) return true;
    }
    return false;
  }
  __aicore__ inline bool has_capacity_for(const Frame& frame) const { return count_ + frame.op.num_outputs <= kMost; }

  __aicore__ inline void add(const Frame& frame) {
    for (int32_t i = 0; i < frame.op.num_outputs; ++i) {
      if (frame.op.operands[i].buffer >= 0) add_one(frame.base(i), frame.task.op);
    }
  }
  __aicore__ inline void clear() { count_ = 0; }

 private:
  static constexpr int32_t kMost = 8;
  static_assert(kMaxOperands <= kMost, "there is room for what one task writes");
  struct Written {
    uint64_t base;
    int32_t op;
  };

  __aicore__ inline void add_one(uint64_t base, int32_t op) {
    for (int32_t w = 0; w < count_; ++w)
      if (written_[w].base == base && written_[w].op == op) return;
    written_[count_++] = {base, op};
  }

  Written written_[kMost];
  int32_t count_ = 0;
};

}  // namespace hpmoe

// The sum of a relay: out[r] = sum_k w[r, k] * in[r * K + k], k = 0, 1, ..., over the rows that its node sent back for
// received row r.
#pragma once

#include "fan_bodies.h"

namespace hpmoe {

__aicore__ inline void relay_sum(VectorUnit& unit, const Frame& frame) {
  const bool is_weighted = frame.op.num_operands > 2;
  Rows2d weights{};
  if (is_weighted) {
    const Buffer of = frame.buffer(2);
    weights = {frame.base(2), element_bytes(of.dtype), of.dtype, 1, true};
  }
  sum_fans(unit, frame, weights, is_weighted);
}

}  // namespace hpmoe

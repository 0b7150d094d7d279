// Matrix tiles: grouped matmul over row slots, and the weights' gradients.
#pragma once

#include "cube_unit.h"
#include "frame.h"

namespace hpmoe {

// out[rows, cols] = x[rows, :] @ w[e][:, cols], or @ w[e][cols, :]^T
__aicore__ inline Product gmm(const Frame& frame) {
  const bool is_turned = frame.op.param[0] == 1;
  const Buffer out = frame.buffer(0), x = frame.buffer(1), w = frame.buffer(2);
  const int64_t row = frame.first_row(2, w), col = frame.first_col(2);
  const uint64_t weight = is_turned ? frame.element(2, w, row + col, 0) : frame.element(2, w, row, col);
  return {frame.rows(1).address, weight, frame.rows(0).address, x.cols, w.cols, out.cols,
          frame.unit.rows, frame.task.cols, frame.num_cols(1, x), false, is_turned, false,
          static_cast<Dtype>(x.dtype), static_cast<Dtype>(out.dtype)};
}

// out[e][k0:k1, cols] = x[rows, k0:k1]^T @ dy[rows, cols], or added to out where that is a main gradient
__aicore__ inline Product wgrad(const Frame& frame) {
  const Buffer out = frame.buffer(0), x = frame.buffer(1), dy = frame.buffer(2);
  const int32_t block = frame.op.param[0], first = frame.op.operands[1].offset, num_k = x.cols - first;
  const int32_t k0 = frame.task.row % frame.op.blocks * block, k1 = least(k0 + block, num_k);
  const bool adds = frame.op.num_operands > 3;
  const int64_t row = static_cast<int64_t>(frame.unit.expert - frame.op.param[3]) * num_k + k0;
  return {frame.element(1, x, frame.unit.start, first + k0), frame.element(2, dy, frame.unit.start, frame.first_col(2)),
          frame.element(0, out, row, frame.first_col(0)), x.cols, dy.cols, out.cols,
          adds && frame.unit.rows == 0 ? 0 : k1 - k0, frame.task.cols, frame.unit.rows, true, false, adds,
          static_cast<Dtype>(x.dtype), static_cast<Dtype>(out.dtype)};
}

}  // namespace hpmoe

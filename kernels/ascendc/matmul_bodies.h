// Matrix tiles: grouped matmul over row slots, and the weights' gradients.
#pragma once

#include "cube_unit.h"
#include "frame.h"

namespace hpmoe {

// An operand of a product, from an address on.
template <class T>
__aicore__ inline Matrix<T> matrix_at(uint64_t address, const Buffer& buffer, bool is_turned) {
  return {global_at<T>(address), buffer.cols, is_turned};
}

// out[rows, cols] = x[rows, :] @ w[e][:, cols], or @ w[e][cols, :]^T
template <class T, class C>
__aicore__ inline void gmm(CubeUnit& cube, const Frame& frame) {
  const bool is_turned = frame.op.param[0] == 1;
  const Buffer out = frame.buffer(0), x = frame.buffer(1), w = frame.buffer(2);
  const int64_t row = frame.first_row(2, w), col = frame.first_col(2);
  const uint64_t weight = is_turned ? frame.element(2, w, row + col, 0) : frame.element(2, w, row, col);
  cube.multiply<T, C>({frame.unit.rows, frame.task.cols, frame.num_cols(1, x)},
                      matrix_at<T>(frame.rows(1).address, x, false), matrix_at<T>(weight, w, is_turned),
                      global_at<C>(frame.rows(0).address), out.cols, false);
}

// out[e][k0:k1, cols] = x[rows, k0:k1]^T @ dy[rows, cols], or added to out where that is a main gradient
template <class T, class C>
__aicore__ inline void wgrad(CubeUnit& cube, const Frame& frame) {
  const Buffer out = frame.buffer(0), x = frame.buffer(1), dy = frame.buffer(2);
  const int32_t block = frame.op.param[0], num_k = x.cols - frame.op.operands[1].offset;
  const int32_t k0 = frame.task.row % frame.op.blocks * block, k1 = least(k0 + block, num_k);
  const bool accumulates = frame.op.num_operands > 3;
  if (accumulates && frame.unit.rows == 0) return;
  const uint64_t first = frame.element(1, x, frame.unit.start, frame.op.operands[1].offset + k0);
  const uint64_t result = frame.element(0, out, static_cast<int64_t>(frame.unit.expert - frame.op.param[3]) * num_k + k0,
                                        frame.first_col(0));
  cube.multiply<T, C>({k1 - k0, frame.task.cols, frame.unit.rows}, matrix_at<T>(first, x, true),
                      matrix_at<T>(frame.element(2, dy, frame.unit.start, frame.first_col(2)), dy, false),
                      global_at<C>(result), out.cols, accumulates);
}

template <class T, class C>
__aicore__ inline void run_product(CubeUnit& cube, const Frame& frame) {
  if (static_cast<Opcode>(frame.op.opcode) == Opcode::GMM) {
    gmm<T, C>(cube, frame);
  } else {
    wgrad<T, C>(cube, frame);
  }
}

template <class T>
__aicore__ inline void run_product_of(CubeUnit& cube, const Frame& frame) {
  if (static_cast<Dtype>(frame.buffer(0).dtype) == Dtype::FLOAT32) {
    run_product<T, float>(cube, frame);
  } else {
    run_product<T, T>(cube, frame);
  }
}

// The body of a task of an AIC queue. Operands are of one half-precision type; the result is of that type or float32.
__aicore__ inline void run_body(CubeUnit& cube, const Frame& frame) {
  if (static_cast<Dtype>(frame.buffer(1).dtype) == Dtype::BFLOAT16) {
    run_product_of<bfloat16_t>(cube, frame);
  } else {
    run_product_of<half>(cube, frame);
  }
}

}  // namespace hpmoe

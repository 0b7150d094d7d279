// Matrix tiles: grouped matmul over row slots and the weights' gradients.
#include <algorithm>

#include "frame.h"
#include "gemm.h"

namespace hpmoe {

// out[rows, cols] = x[rows, :] @ w[e][:, cols], or @ w[e][cols, :]^T
template <class Element>
Code gmm(const Frame& frame) {
  const View<Element> out = frame.view<Element>(0), x = frame.view<Element>(1);
  const bool transposed = frame.op.param[0] == 1;
  const int64_t ldw = frame.buffer(2).cols;
  const Element* w = frame.base<Element>(2) + frame.first_row(2) * ldw + frame.first_col(2) * (transposed ? ldw : 1);
  const int64_t num_k = frame.num_cols(1);
  const Gemm shape{false, transposed, frame.unit.rows, frame.task.cols, num_k, x.row_stride, ldw, out.row_stride};
  gemm(shape, x.data, w, out.data);
  return Code::OK;
}

// out[e][k0:k1, cols] = x[rows, k0:k1]^T @ dy[rows, cols]
template <class Element>
Code wgrad(const Frame& frame) {
  const int64_t block = frame.op.param[0], ldx = frame.buffer(1).cols, ldo = frame.buffer(0).cols;
  const int64_t num_k = ldx - frame.op.operands[1].offset;
  const int64_t k0 = (frame.task.row % frame.op.blocks) * block, k1 = std::min(k0 + block, num_k);
  Element* out = frame.base<Element>(0) + (frame.unit.expert * num_k + k0) * ldo + frame.first_col(0);
  const Element* x = frame.base<Element>(1) + frame.unit.start * ldx + frame.op.operands[1].offset + k0;
  const Element* dy = frame.base<Element>(2) + frame.unit.start * frame.buffer(2).cols + frame.first_col(2);
  gemm({true, false, k1 - k0, frame.task.cols, frame.unit.rows, ldx, frame.buffer(2).cols, ldo}, x, dy, out);
  return Code::OK;
}

template Code gmm<float>(const Frame&);
template Code wgrad<float>(const Frame&);

}  // namespace hpmoe

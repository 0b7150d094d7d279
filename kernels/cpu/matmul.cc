// Matrix tiles: grouped matmul over row slots and the weights' gradients.
#include <algorithm>
#include <cstring>

#include "frame.h"
#include "gemm.h"

namespace hpmoe {

// out[rows, cols] = x[rows, :] @ w[e][:, cols], or @ w[e][cols, :]^T
Code gmm(const Frame& frame) {
  const bool transposed = frame.op.param[0] == 1;
  const int64_t row = frame.first_row(2), col = frame.first_col(2);
  const View out = frame.view(0), x = frame.view(1);
  const Matrix w{transposed ? frame.element(2, row + col, 0) : frame.element(2, row, col), frame.dtype(2),
                 frame.buffer(2).cols, transposed};
  gemm({frame.unit.rows, frame.task.cols, frame.num_cols(1)}, {x.data, x.dtype, x.row_stride}, w,
       {out.data, out.dtype, out.row_stride});
  return Code::OK;
}

// out[e][k0:k1, cols] = x[rows, k0:k1]^T @ dy[rows, cols], added to a float32 array of the same shape where there is one,
// which may be out itself
Code wgrad(const Frame& frame) {
  const int64_t block = frame.op.param[0], num_k = frame.buffer(1).cols - frame.op.operands[1].offset;
  const int64_t k0 = (frame.task.row % frame.op.blocks) * block, k1 = std::min(k0 + block, num_k);
  const int64_t rows = frame.unit.rows, start = frame.unit.start;
  const Matrix out{frame.element(0, frame.unit.expert * num_k + k0, frame.first_col(0)), frame.dtype(0),
                   frame.buffer(0).cols};
  const Matrix x{frame.element(1, start, frame.op.operands[1].offset + k0), frame.dtype(1), frame.buffer(1).cols, true};
  const Matrix dy{frame.element(2, start, frame.first_col(2)), frame.dtype(2), frame.buffer(2).cols};
  const bool accumulates = frame.op.num_operands > 3;
  if (accumulates) {
    const char* main = frame.element(3, frame.unit.expert * num_k + k0, frame.first_col(3));
    const int64_t row_bytes = out.ld * element_size(out.dtype);
    for (int64_t i = 0; i < k1 - k0 && main != out.data; ++i) {
      std::memcpy(out.data + i * row_bytes, main + i * row_bytes, frame.task.cols * element_size(out.dtype));
    }
  }
  gemm({k1 - k0, frame.task.cols, rows}, x, dy, out, accumulates);
  return Code::OK;
}

}  // namespace hpmoe

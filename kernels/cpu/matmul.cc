// Matrix tiles: grouped matmul over row slots and the weights' gradients.
#include <algorithm>
#include <cstring>

#include "bodies.h"
#include "gemm.h"
#include "scratch.h"

namespace hpmoe {

// Computes out[rows, cols] = x[rows, :] @ w[e][:, cols], or @ w[e][cols, :]^T. The weights of expert replicas are a
// separate operand.
Code gmm(const Frame& frame) {
  const bool transposed = params::EarlyMatmul::of(frame.op).is_transposed;
  const int of = frame.op.num_operands > 3 && frame.unit.expert >= frame.routing->num_own_experts() ? 3 : 2;
  const int64_t row = frame.first_row(of), col = frame.first_col(of);
  const View out = frame.view(0), x = frame.view(1);
  const Matrix w{transposed ? frame.element(of, row + col, 0) : frame.element(of, row, col), frame.dtype(of),
                 frame.buffer(of).cols, transposed};
  gemm({frame.unit.rows, frame.task.cols, frame.num_cols(1)}, {x.data, x.dtype, x.row_stride}, w,
       {out.data, out.dtype, out.row_stride});
  return Code::OK;
}

namespace {

// Returns the first operand from the fourth on with this row mode, or -1.
int find_operand(const Op& op, Rows rows) {
  for (int i = 3; i < op.num_operands; ++i)
    if (static_cast<Rows>(op.operands[i].rows) == rows) return i;
  return -1;
}

// Sums, into sum[k1 - k0, cols], the gradients that the replicas of the task's expert returned for rows k0 .. k1, in the
// order of the replicas. Adds the float32 array `main` of row stride ld unless it is NULL.
void add_returned(const Frame& frame, int returned, int64_t k0, int64_t k1, const float* main, int64_t ld, float* sum) {
  const int64_t cols = frame.task.cols, num_k = frame.buffer(returned).rows_per_expert;
  for (int64_t i = 0; i < k1 - k0; ++i) {
    if (main)
      std::copy_n(main + i * ld, cols, sum + i * cols);
    else
      std::fill_n(sum + i * cols, cols, 0.0f);
  }
  const Routing& routing = *frame.routing;
  int64_t number = 0;
  for (Copy copy = routing.first_copy(frame.rank); copy.host >= 0; copy = routing.next_copy(frame.rank, copy), ++number) {
    if (copy.expert != frame.unit.expert) continue;
    Reader reader(View{frame.element(returned, number * num_k + k0, frame.first_col(returned)), frame.buffer(returned).cols,
                       1, frame.dtype(returned)});
    for_each_chunk(k1 - k0, cols, [&](int64_t row, int64_t col, int64_t n) {
      const float* part = reader.chunk(row, col, n);
      for (int64_t j = 0; j < n; ++j) sum[row * cols + col + j] += part[j];
    });
  }
}

// Returns true if an operand's array, over all ranks, is larger than the part of the caches that it can use.
bool is_large(const Frame& frame, int i) {
  constexpr int64_t kLarge = int64_t{16} << 20;
  const Buffer& buffer = frame.buffer(i);
  return int64_t{buffer.rows} * buffer.cols * element_size(frame.dtype(i)) * frame.image.header->ep_size >= kLarge;
}

}  // namespace

// Computes out[e][k0:k1, cols] = x[rows, k0:k1]^T @ dy[rows, cols], plus a float32 array of the same shape if given,
// which may be out itself, plus the gradients that the expert's replicas returned.
Code wgrad(const Frame& frame) {
  const int64_t block = params::WeightBlock::of(frame.op).block, num_k = frame.buffer(1).cols - frame.op.operands[1].offset;
  const int64_t k0 = (frame.task.row % frame.op.blocks) * block, k1 = std::min(k0 + block, num_k);
  const int64_t rows = frame.unit.rows, start = frame.unit.start;
  const int64_t first_row = (frame.unit.expert - params::Summed::of(frame.op).first_expert) * num_k + k0;
  const Matrix out{frame.element(0, first_row, frame.first_col(0)), frame.dtype(0), frame.buffer(0).cols};
  const Matrix x{frame.element(1, start, frame.op.operands[1].offset + k0), frame.dtype(1), frame.buffer(1).cols, true};
  const Matrix dy{frame.element(2, start, frame.first_col(2)), frame.dtype(2), frame.buffer(2).cols};
  const int added = find_operand(frame.op, Rows::OWN), returned = find_operand(frame.op, Rows::RETURNED);
  const char* const main = added < 0 ? nullptr : frame.element(added, first_row, frame.first_col(added));
  const Sizes sizes{k1 - k0, frame.task.cols, rows};
  const int64_t row_bytes = out.ld * element_size(out.dtype);
  if (returned >= 0 && frame.routing->num_copies(frame.rank, frame.unit.expert) > 0) {
    thread_local Scratch<float> scratch;
    float* const sum = scratch.at_least(sizes.m * sizes.n);
    add_returned(frame, returned, k0, k1, reinterpret_cast<const float*>(main), out.ld, sum);
    gemm(sizes, x, dy, {reinterpret_cast<char*>(sum), Dtype::FLOAT32, sizes.n}, true);
    for (int64_t i = 0; i < sizes.m; ++i) from_float32(out.dtype, sum + i * sizes.n, sizes.n, out.data + i * row_bytes);
    return Code::OK;
  }
  for (int64_t i = 0; i < sizes.m && main && main != out.data; ++i) {
    std::memcpy(out.data + i * row_bytes, main + i * row_bytes, sizes.n * element_size(out.dtype));
  }
  gemm(sizes, x, dy, {out.data, out.dtype, out.ld, false, is_large(frame, 0)}, main != nullptr);
  return Code::OK;
}

}  // namespace hpmoe

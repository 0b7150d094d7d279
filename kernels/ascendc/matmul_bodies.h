// Matrix bodies: grouped matmul over row slots, and weight gradients.
#pragma once

#include "cube_unit.h"
#include "frame.h"

namespace hpmoe {

constexpr int32_t kInt8RowScaleBytes = 4;

// Returns true if the matrix core supports a product's dtypes: equal float dtypes of both operands, and a result of the
// same dtype or float32, the dtype of main gradients.
__aicore__ inline bool can_multiply(const Frame& frame) {
  const int32_t from = frame.buffer(1).dtype, to = frame.buffer(0).dtype, wide = static_cast<int32_t>(Dtype::FLOAT32);
  bool can = is_float(from) && (to == from || to == wide);
  for (int32_t i = 2; i < frame.op.num_operands; ++i) {
    const bool is_main = static_cast<Rows>(frame.op.operands[i].rows) == Rows::OWN;
    can = can && frame.buffer(i).dtype == (is_main ? wide : from);
  }
  return can;
}

// Returns the first operand from the fourth on with this row mode, or -1.
__aicore__ inline int32_t find_operand(const Op& op, Rows rows) {
  for (int32_t i = 3; i < op.num_operands; ++i)
    if (static_cast<Rows>(op.operands[i].rows) == rows) return i;
  return -1;
}

// Returns the operand with the matrix of the unit's expert.
__aicore__ inline int32_t matrix_of(const Frame& frame) {
  const int32_t copies = find_operand(frame.op, Rows::REPLICA);
  return copies > 0 && frame.unit.expert >= frame.routing.num_own_experts() ? copies : 2;
}

// Computes out[rows, cols] = x[rows, :] @ w[e][:, cols], or @ w[e][cols, :]^T. The weights of expert replicas are a
// separate operand.
__aicore__ inline Product product_of_rows(const Frame& frame) {
  const bool is_transposed = params::Matmul::of(frame.op).is_transposed;
  const int32_t of = matrix_of(frame);
  const Buffer out = frame.buffer(0), x = frame.buffer(1), w = frame.buffer(of);
  const int64_t row = frame.first_row(of, w), col = frame.first_col(of);
  const uint64_t weight = is_transposed ? frame.element(of, w, row + col, 0) : frame.element(of, w, row, col);
  return {frame.rows(1).address,
          weight,
          frame.rows(0).address,
          x.cols,
          w.cols,
          out.cols,
          frame.unit.rows,
          frame.task.cols,
          frame.num_cols(1, x),
          false,
          is_transposed,
          false,
          static_cast<Dtype>(x.dtype),
          static_cast<Dtype>(out.dtype),
          {}};
}

__aicore__ inline Product gmm(const Frame& frame) {
  return can_multiply(frame) ? product_of_rows(frame) : refused_product();
}

// Returns true if the matrix core supports a product of int8.
__aicore__ inline bool can_multiply_int8(const Frame& frame) {
  const int32_t bytes = static_cast<int32_t>(Dtype::UINT8), sums = static_cast<int32_t>(Dtype::INT32);
  return frame.buffer(1).dtype == bytes && frame.buffer(2).dtype == bytes && frame.buffer(0).dtype == sums;
}

// Computes sums[rows, cols] = q[rows, :] @ w[e][:, cols], or @ w[e][cols, :]^T, of quantised elements without their
// scales.
__aicore__ inline Product gmm_int8(const Frame& frame) {
  if (!can_multiply_int8(frame)) return refused_product();
  Product product = product_of_rows(frame);
  product.k -= kInt8RowScaleBytes;
  return product;
}

// Returns whether the matrix core multiplies these fp8 operands; mxfp8 needs transposed weights and pairs of whole blocks.
__aicore__ inline bool can_multiply_fp8(const Frame& frame) {
  const RowFormat format = fp8_format_of(frame.op);
  const int32_t bytes = static_cast<int32_t>(Dtype::UINT8), to = frame.buffer(0).dtype;
  const int64_t k = unpacked_cols(format, frame.num_cols(1, frame.buffer(1)));
  const bool has_blocks = format.block == kMxBlock && params::Fp8Matmul::of(frame.op).is_transposed && k % kMxPair == 0;
  return kHasFp8Products && frame.buffer(1).dtype == bytes && frame.buffer(2).dtype == bytes && is_float(to) && k > 0 &&
         (format.block == 0 || has_blocks);
}

// Like gmm_int8() for fp8; elements of mxfp8 are multiplied by the scales of their blocks.
__aicore__ inline Product gmm_fp8(const Frame& frame) {
  if (!can_multiply_fp8(frame)) return refused_product();
  const RowFormat format = fp8_format_of(frame.op);
  Product product = product_of_rows(frame);
  product.k = static_cast<int32_t>(unpacked_cols(format, product.k));
  product.element = format.element;
  if (format.block == 0) return product;
  const int32_t matrix = matrix_of(frame), of = matrix + 1;
  const Buffer scales = frame.buffer(of);
  const int64_t row = frame.first_row(matrix, frame.buffer(matrix)) + frame.first_col(matrix);
  product.scales = {product.a + product.k, frame.element(of, scales, row, 0), product.ld_a, scales.cols};
  return product;
}

// Returns the gradients that replicas of a task's expert have returned, from row k0 on.
__aicore__ inline Added find_returned(const Frame& frame, int32_t operand, int32_t k0) {
  if (operand < 0) return {};
  const Buffer b = frame.buffer(operand);
  const RoutingTables& routing = frame.routing;
  const int32_t me = frame.rank->args.rank;
  Added added{};
  int32_t number = 0;
  for (Copy copy = routing.first_copy(me); copy.host >= 0; copy = routing.next_copy(me, copy), ++number)
    if (copy.expert == frame.unit.expert) added.which |= uint64_t{1} << number;
  added.address = frame.element(operand, b, k0, frame.first_col(operand));
  added.step = static_cast<uint64_t>(b.rows_per_expert) * b.cols * element_bytes(b.dtype);
  added.ld = b.cols;
  added.unit = frame.rank->args.tables;
  return added;
}

// Computes out[e][k0:k1, cols] = x[rows, k0:k1]^T @ dy[rows, cols], plus out if it is a main gradient, plus the gradients
// that the expert's replicas returned.
__aicore__ inline Product wgrad(const Frame& frame) {
  if (!can_multiply(frame)) return refused_product();
  const Buffer out = frame.buffer(0), x = frame.buffer(1), dy = frame.buffer(2);
  const int32_t block = params::WeightBlock::of(frame.op).block, first = frame.op.operands[1].offset, num_k = x.cols - first;
  const int32_t k0 = frame.task.row % frame.op.blocks * block, k1 = least(k0 + block, num_k);
  const bool adds = find_operand(frame.op, Rows::OWN) >= 0;
  const Added added = find_returned(frame, find_operand(frame.op, Rows::RETURNED), k0);
  const int64_t row = static_cast<int64_t>(frame.unit.expert - params::Summed::of(frame.op).first_expert) * num_k + k0;
  return {frame.element(1, x, frame.unit.start, first + k0),
          frame.element(2, dy, frame.unit.start, frame.first_col(2)),
          frame.element(0, out, row, frame.first_col(0)),
          x.cols,
          dy.cols,
          out.cols,
          adds && frame.unit.rows == 0 && added.which == 0 ? 0 : k1 - k0,
          frame.task.cols,
          frame.unit.rows,
          true,
          false,
          adds,
          static_cast<Dtype>(x.dtype),
          static_cast<Dtype>(out.dtype),
          added};
}

}  // namespace hpmoe

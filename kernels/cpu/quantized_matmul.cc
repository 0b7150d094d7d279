// Products with quantised weights: elements of one byte are dequantized block by block for float products.
#include <algorithm>
#include <cstring>

#include "bodies.h"
#include "core/row_format.h"
#include "elements.h"
#include "gemm.h"
#include "multiversion.h"
#include "scratch.h"

namespace hpmoe {
namespace {

constexpr int64_t kScaleBytes = 4;  // of a quantised row, after its elements
constexpr int64_t kExactTerms = 1024;  // terms of int8 whose sum float32 holds exactly: 1024 * 128 * 127 < 2^24
constexpr int64_t kDequantizedTerms = 512;  // terms whose dequantized block stays in L2

// Quantised rows, `ld` bytes from row to row, and the scales of their blocks, if any, from the block of column `col` on.
struct Elements {
  Element element;
  const char* at;
  int64_t ld;
  const uint8_t* scales = nullptr;
  int64_t scales_ld = 0, block = 0, col = 0;

  void read(int64_t row, int64_t first, int64_t n, float* to) const {
    const auto* const from = reinterpret_cast<const uint8_t*>(at) + row * ld + first;
    if (block == 0) return read_elements(element, from, n, 1.0f, to);
    for (int64_t i = 0, next; i < n; i = next) {
      const int64_t place = (col + first + i) / block;
      next = std::min(n, (place + 1) * block - col - first);
      read_elements(element, from + i, next - i, e8m0_value(scales[row * scales_ld + place]), to + i);
    }
  }
};

// Dequantizes rows x cols elements into scratch, as a matrix of a float dtype.
Matrix dequantized(const Elements& from, int64_t rows, int64_t cols, Dtype dtype, bool transposed, Scratch<char>& scratch) {
  const int64_t size = element_size(dtype);
  char* const to = scratch.at_least(rows * cols * size);
  float chunk[kChunk];
  for_each_chunk(rows, cols, [&](int64_t row, int64_t col, int64_t n) {
    float* const out = dtype == Dtype::FLOAT32 ? reinterpret_cast<float*>(to) + row * cols + col : chunk;
    from.read(row, col, n, out);
    if (dtype != Dtype::FLOAT32) from_float32(dtype, chunk, n, to + (row * cols + col) * size);
  });
  return {to, dtype, cols, transposed};
}

// Returns the operand that holds the matrix of the unit's expert; the last operands hold those of expert replicas.
int matrix_of(const Frame& frame) {
  if (!frame.routing || frame.unit.expert < frame.routed().num_own_experts()) return 2;
  for (int i = 3; i < frame.op.num_operands; ++i)
    if (static_cast<Rows>(frame.op.operands[i].rows) == Rows::REPLICA) return i;
  return 2;
}

// Dequantizes terms [k0, k0 + kc) of the weight of the unit's expert, in the task's columns.
Matrix dequantized_weight(const Frame& frame, const RowFormat& format, int64_t k0, int64_t kc, Dtype dtype) {
  thread_local Scratch<char> scratch;
  const bool transposed = params::Matmul::of(frame.op).is_transposed;
  const int of = matrix_of(frame);
  const int64_t own = frame.first_col(2), n = frame.task.cols;
  const int64_t row = frame.first_row(of) + (transposed ? own : k0), col = transposed ? k0 : own;
  Elements from{format.element, frame.element(of, row, col), frame.buffer(of).cols};
  if (format.block > 0) {
    from.scales = reinterpret_cast<const uint8_t*>(frame.element(of + 1, row, 0));
    from.scales_ld = frame.buffer(of + 1).cols;
    from.block = format.block;
    from.col = col;
  }
  return dequantized(from, transposed ? n : kc, transposed ? kc : n, dtype, transposed, scratch);
}

HPMOE_MULTIVERSION
void add_integers(int64_t n, const float* x, int32_t* sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += static_cast<int32_t>(x[i]);
}

HPMOE_MULTIVERSION
void rescale_row(int64_t n, const int32_t* sums, float row_scale, const float* scales, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(sums[i]) * row_scale * scales[i];
}
HPMOE_MULTIVERSION
void rescale_row(int64_t n, const float* sums, float row_scale, const float* scales, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = sums[i] * row_scale * scales[i];
}

// Returns a reader of the column scales of the unit's expert; all ones if the op has no scales.
Reader scales_of(const Frame& frame, bool has_scales) {
  const bool is_there = has_scales && frame.op.num_operands > 3;
  return is_there && static_cast<Rows>(frame.op.operands[3].rows) == Rows::SLOT_EXPERT ? Reader(frame.view(3))
                                                                                       : Reader(1.0f);
}

}  // namespace

// Computes sums[rows, cols] = q[rows, :] @ w[e][:, cols], or @ w[e][cols, :]^T, of int8. Every block of terms is exact in
// float32.
Code gmm_int8(const Frame& frame) {
  thread_local Scratch<char> of_rows;
  thread_local Scratch<float> part;
  const View out = frame.view(0), x = frame.view(1);
  const Dtype dtype = uses_amx() ? Dtype::BFLOAT16 : Dtype::FLOAT32;  // both hold every int8
  const int64_t rows = frame.unit.rows, cols = frame.task.cols, terms = frame.num_cols(1) - kScaleBytes;
  float* const sums = part.at_least(rows * cols);
  for (int64_t i = 0; i < rows; ++i) std::memset(out.at(i, 0), 0, cols * sizeof(int32_t));
  for (int64_t k0 = 0; k0 < terms; k0 += kExactTerms) {
    const int64_t kc = std::min(kExactTerms, terms - k0);
    const Matrix q = dequantized({Element::INT8, x.at(0, k0), x.row_stride}, rows, kc, dtype, false, of_rows);
    gemm({rows, cols, kc}, q, dequantized_weight(frame, kInt8Rows, k0, kc, dtype),
         {reinterpret_cast<char*>(sums), Dtype::FLOAT32, cols});
    for (int64_t i = 0; i < rows; ++i) add_integers(cols, sums + i * cols, reinterpret_cast<int32_t*>(out.at(i, 0)));
  }
  return Code::OK;
}

// Computes out[rows, cols] = q[rows, :] @ w[e][:, cols], or @ w[e][cols, :]^T, of fp8: float32 sums of elements, which
// are multiplied by the scales of their blocks if the format has blocks.
Code gmm_fp8(const Frame& frame) {
  thread_local Scratch<char> of_rows;
  thread_local Scratch<float> product;
  const View x = frame.view(1);
  const RowFormat format = fp8_format_of(frame.op);
  const bool has_blocks = format.block > 0;
  const Dtype dtype = uses_amx() && !has_blocks ? Dtype::BFLOAT16 : Dtype::FLOAT32;  // both hold every element
  const int64_t rows = frame.unit.rows, cols = frame.task.cols, terms = unpacked_cols(format, frame.num_cols(1));
  float* const sums = product.at_least(rows * cols);
  for (int64_t k0 = 0; k0 < terms; k0 += kDequantizedTerms) {
    const int64_t kc = std::min(kDequantizedTerms, terms - k0);
    Elements from{format.element, x.at(0, k0), x.row_stride};
    if (has_blocks) {
      from.scales = reinterpret_cast<const uint8_t*>(x.at(0, terms));
      from.scales_ld = x.row_stride;
      from.block = format.block;
      from.col = k0;
    }
    gemm({rows, cols, kc}, dequantized(from, rows, kc, dtype, false, of_rows),
         dequantized_weight(frame, format, k0, kc, dtype), {reinterpret_cast<char*>(sums), Dtype::FLOAT32, cols}, k0 > 0);
  }
  Writer out(frame.view(0));
  for_each_chunk(rows, cols, [&](int64_t row, int64_t col, int64_t n) {
    std::memcpy(out.chunk(row, col), sums + row * cols + col, n * sizeof(float));
    out.store(row, col, n);
  });
  return Code::OK;
}

// Computes out[r, n] = sums[r, n] * scale of row r * scale of column n.
Code rescale(const Frame& frame) {
  const View sums = frame.view(1);
  const bool are_integers = sums.dtype == Dtype::INT32;
  const int64_t place = frame.num_cols(2) - kScaleBytes;
  Writer out(frame.view(0));
  Reader scales = scales_of(frame, true);
  for_each_chunk(frame.unit.rows, frame.task.cols, [&](int64_t row, int64_t col, int64_t n) {
    float row_scale;
    std::memcpy(&row_scale, frame.view(2).at(row, place), sizeof(row_scale));
    const char* const given = sums.at(row, col);
    const float* const of_columns = scales.chunk(0, col, n);
    if (are_integers) {
      rescale_row(n, reinterpret_cast<const int32_t*>(given), row_scale, of_columns, out.chunk(row, col));
    } else {
      rescale_row(n, reinterpret_cast<const float*>(given), row_scale, of_columns, out.chunk(row, col));
    }
    out.store(row, col, n);
  });
  return Code::OK;
}

// Computes out[r, n] = (x[r, :] @ w[e][:, n], or @ w[e][n, :]^T) * scale of column n. The weight's elements are converted
// to numbers and multiplied by the scales of their blocks if the format has blocks.
Code gmm_dequantized(const Frame& frame) {
  thread_local Scratch<float> product;
  const View x = frame.view(1);
  const RowFormat format = dequantized_format_of(frame.op);
  const Dtype dtype = x.dtype == Dtype::FLOAT16 ? Dtype::FLOAT32 : x.dtype;  // float16 cannot hold every scaled element
  const int64_t rows = frame.unit.rows, cols = frame.task.cols, terms = frame.num_cols(1);
  float* const sums = product.at_least(rows * cols);
  for (int64_t k0 = 0; k0 < terms; k0 += kDequantizedTerms) {
    const int64_t kc = std::min(kDequantizedTerms, terms - k0);
    gemm({rows, cols, kc}, {x.at(0, k0), x.dtype, x.row_stride}, dequantized_weight(frame, format, k0, kc, dtype),
         {reinterpret_cast<char*>(sums), Dtype::FLOAT32, cols}, k0 > 0);
  }
  Writer out(frame.view(0));
  Reader scales = scales_of(frame, format.block == 0);
  for_each_chunk(rows, cols, [&](int64_t row, int64_t col, int64_t n) {
    const float *const scale = scales.chunk(0, col, n), *const sum = sums + row * cols + col;
    float* const to = out.chunk(row, col);
    for (int64_t i = 0; i < n; ++i) to[i] = sum[i] * scale[i];
    out.store(row, col, n);
  });
  return Code::OK;
}

// Computes out[r, k] = element * scale of its block, without a scale if the format has no blocks.
Code dequantize_weight(const Frame& frame) {
  const RowFormat format = RowFormat::of(frame.op);
  Elements from{format.element, frame.view(1).at(0, 0), frame.buffer(1).cols};
  if (format.block > 0) {
    from.scales = reinterpret_cast<const uint8_t*>(frame.view(2).at(0, 0));
    from.scales_ld = frame.buffer(2).cols;
    from.block = format.block;
  }
  Writer out(frame.view(0));
  for_each_chunk(frame.unit.rows, frame.num_cols(0), [&](int64_t row, int64_t col, int64_t n) {
    from.read(row, col, n, out.chunk(row, col));
    out.store(row, col, n);
  });
  return Code::OK;
}

}  // namespace hpmoe

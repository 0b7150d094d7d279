// Sums and maxima in a fixed order (rows from top to bottom, columns in lanes), gathers, and FAN_OUT and FAN_IN.
#include <algorithm>
#include <cstring>
#include <vector>

#include "bodies.h"
#include "entry_sums.h"
#include "lanes.h"

namespace hpmoe {

EntrySums::EntrySums(const Frame& frame, int out, int entries, int weights)
    : frame_(frame),
      weights_operand_(weights < frame.op.num_operands ? weights : 0),
      top_k_(frame.routing->top_k()),
      first_(frame.unit.start),
      cols_(frame.num_cols(out)),
      out_({frame.element(out, first_, frame.first_col(out)), frame.buffer(out).cols, 1, frame.dtype(out)}),
      in_({frame.element(entries, first_ * top_k_, frame.first_col(entries)), frame.buffer(entries).cols, 1,
           frame.dtype(entries)}),
      weights_(top_k_, 1.0f) {}

void EntrySums::operator()(int64_t row) {
  const int w = weights_operand_;
  if (w) to_float32(frame_.dtype(w), frame_.element(w, first_ + row, 0), top_k_, weights_.data());
  for_each_chunk(1, cols_, [&](int64_t, int64_t col, int64_t n) {
    float* const sum = out_.chunk(row, col);
    std::fill_n(sum, n, 0.0f);
    for (int64_t k = 0; k < top_k_; ++k) {
      if (!frame_.routing->is_kept(frame_.rank, (first_ + row) * top_k_ + k)) continue;
      add_scaled(n, weights_[k], in_.chunk(row * top_k_ + k, col, n), sum);
    }
    out_.store(row, col, n);
  });
}

Code reduce(const Frame& frame) {
  EntrySums sum(frame, 0, 1, 2);
  for (int64_t row = 0; row < frame.unit.rows; ++row) sum(row);
  return Code::OK;
}

// Computes out[t] = sum of w[r] * in[r] over the rows r that the rank's experts have of token t, in the order of the
// token's choices.
Code fan_in(const Frame& frame) {
  Writer out({frame.element(0, 0, frame.first_col(0)), frame.buffer(0).cols, 1, frame.dtype(0)});
  Reader in({frame.element(1, 0, frame.first_col(1)), frame.buffer(1).cols, 1, frame.dtype(1)});
  const int64_t cols = frame.num_cols(0);
  std::vector<float> weights(frame.routing->top_k(), 1.0f);
  for_each_fan(frame, [&](int64_t token, const std::vector<ExpertRow>& rows) {
    for (size_t i = 0; frame.op.num_operands > 2 && i < rows.size(); ++i)
      to_float32(frame.dtype(2), frame.element(2, rows[i].row, 0), 1, &weights[i]);
    for (int64_t col = 0; col < cols; col += kChunk) {
      const int64_t n = std::min(kChunk, cols - col);
      float* const sum = out.chunk(token, col);
      std::fill_n(sum, n, 0.0f);
      for (size_t i = 0; i < rows.size(); ++i) add_scaled(n, weights[i], in.chunk(rows[i].row, col, n), sum);
      out.store(token, col, n);
    }
  });
  return Code::OK;
}

// Computes out[r] = in[t] for the rows r that the rank's experts have of each token t, and 0 for padding rows.
Code fan_out(const Frame& frame) {
  const int64_t bytes = frame.num_cols(0) * element_size(frame.dtype(0));
  for_each_fan(frame, [&](int64_t token, const std::vector<ExpertRow>& rows) {
    const char* const in = frame.element(1, token, frame.first_col(1));
    for (const ExpertRow& to : rows) std::memcpy(frame.element(0, to.row, frame.first_col(0)), in, bytes);
  });
  for_each_fan_padding(frame,
                       [&](const ExpertRow& to) { std::memset(frame.element(0, to.row, frame.first_col(0)), 0, bytes); });
  return Code::OK;
}

Code row_dot(const Frame& frame) {
  const int64_t cols = frame.num_cols(1);
  Writer out(frame.view(0));
  Reader a(frame.view(1)), b(frame.view(2));
  float lanes[kLanes];
  for_each_chunk(frame.unit.rows, cols, [&](int64_t row, int64_t col, int64_t n) {
    if (col == 0) std::fill_n(lanes, kLanes, 0.0f);
    dot_lanes(n, a.chunk(row, col, n), b.chunk(row, col, n), lanes);
    if (col + n == cols) out.store_one(row, sum_of(lanes));
  });
  return Code::OK;
}

// Computes out[e, cols] = sum of the expert's rows.
Code col_sum(const Frame& frame) {
  if (is_of_integers(frame)) return col_sum_integers(frame);
  Writer out({frame.element(0, frame.unit.expert, frame.first_col(0)), 0, 1, frame.dtype(0)});
  Reader x({frame.element(1, frame.unit.start, frame.first_col(1)), frame.buffer(1).cols, 1, frame.dtype(1)});
  for_each_chunk(1, frame.task.cols, [&](int64_t, int64_t col, int64_t n) {
    float* const sum = out.chunk(0, col);
    std::fill_n(sum, n, 0.0f);
    for (int64_t i = 0; i < frame.unit.rows; ++i) add_scaled(n, 1.0f, x.chunk(i, col, n), sum);
    out.store(0, col, n);
  });
  return Code::OK;
}

// Computes out[i] = x[index[i]]; a negative index counts from the end.
Code gather(const Frame& frame) {
  const View out = frame.view(0), index = frame.view(2);
  const Buffer& source = frame.buffer(1);
  const int64_t cols = frame.num_cols(1);
  for (int64_t i = 0; i < frame.unit.rows; ++i) {
    const int32_t at = __atomic_load_n(reinterpret_cast<const int32_t*>(index.at(i, 0)), __ATOMIC_RELAXED);  // one read
    const int64_t row = at + (at < 0 ? int64_t{source.rows} : 0);
    if (row < 0 || row >= source.rows) return Code::INDEX_OUT_OF_RANGE;
    copy_row(frame.dtype(1), frame.element(1, row, frame.first_col(1)), cols, out.dtype, out.at(i, 0));
  }
  return Code::OK;
}

}  // namespace hpmoe

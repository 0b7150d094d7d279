// Sums and maxima, always in the same order: rows top to bottom, columns in fixed lanes. And the gather of rows.
#include <algorithm>
#include <cstring>

#include "frame.h"
#include "vector_math.h"

namespace hpmoe {
namespace {

constexpr int64_t kLanes = 16;

template <class Combine>
HPMOE_INLINE float fold_lanes(float* lanes, Combine combine) {
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) lanes[i] = combine(lanes[i], lanes[i + half]);
  }
  return lanes[0];
}

HPMOE_MULTIVERSION
float sum_row(int64_t n, const float* x) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] += x[i + j];
  }
  for (int64_t j = 0; i + j < n; ++j) lanes[j] += x[i + j];
  return fold_lanes(lanes, [](float a, float b) { return a + b; });
}

HPMOE_MULTIVERSION
float dot_row(int64_t n, const float* x, const float* y) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] += x[i + j] * y[i + j];
  }
  for (int64_t j = 0; i + j < n; ++j) lanes[j] += x[i + j] * y[i + j];
  return fold_lanes(lanes, [](float a, float b) { return a + b; });
}

HPMOE_MULTIVERSION
float max_row(int64_t n, const float* x) {
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, -__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] = maximum_(lanes[j], x[i + j]);
  }
  for (int64_t j = 0; i + j < n; ++j) lanes[j] = maximum_(lanes[j], x[i + j]);
  return fold_lanes(lanes, [](float a, float b) { return maximum_(a, b); });
}

HPMOE_MULTIVERSION
void add_scaled(int64_t n, float scale, const float* x, float* sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += scale * x[i];
}

}  // namespace

// out[t] = sum_k w[t, k] * in[t * K + k], k = 0, 1, ...
template <class Element>
Code reduce_entries(const Frame& frame) {
  const int64_t top_k = frame.routing->top_k(), num_cols = frame.num_cols(0);
  const int64_t ldo = frame.buffer(0).cols, ldi = frame.buffer(1).cols;
  const bool weighted = frame.op.num_operands > 2;
  for (int64_t token = frame.unit.start; token < frame.unit.start + frame.unit.rows; ++token) {
    Element* out = frame.base<Element>(0) + token * ldo + frame.first_col(0);
    std::fill_n(out, num_cols, Element(0));
    for (int64_t k = 0; k < top_k; ++k) {
      const Element* in = frame.base<Element>(1) + (token * top_k + k) * ldi + frame.first_col(1);
      const float scale = weighted ? frame.base<Element>(2)[token * frame.buffer(2).cols + k] : 1.0f;
      add_scaled(num_cols, scale, in, out);
    }
  }
  return Code::OK;
}

template <class Element>
Code row_reduce(const Frame& frame) {
  const auto out = frame.view<Element>(0), x = frame.view<Element>(1);
  const auto reduce = static_cast<Reduction>(frame.op.param[0]) == Reduction::MAX ? max_row : sum_row;
  for (int64_t i = 0; i < frame.unit.rows; ++i) *out.row(i) = reduce(frame.num_cols(1), x.row(i));
  return Code::OK;
}

template <class Element>
Code row_dot(const Frame& frame) {
  const auto out = frame.view<Element>(0), a = frame.view<Element>(1), b = frame.view<Element>(2);
  for (int64_t i = 0; i < frame.unit.rows; ++i) *out.row(i) = dot_row(frame.num_cols(1), a.row(i), b.row(i));
  return Code::OK;
}

// out[e, cols] = sum of the expert's rows
template <class Element>
Code col_sum(const Frame& frame) {
  const int64_t ldx = frame.buffer(1).cols;
  Element* out = frame.base<Element>(0) + frame.unit.expert * frame.buffer(0).cols + frame.first_col(0);
  const Element* x = frame.base<Element>(1) + frame.unit.start * ldx + frame.first_col(1);
  std::fill_n(out, frame.task.cols, Element(0));
  for (int64_t i = 0; i < frame.unit.rows; ++i) add_scaled(frame.task.cols, 1.0f, x + i * ldx, out);
  return Code::OK;
}

// out[i] = x[index[i]], zero where the index is negative
template <class Element>
Code gather(const Frame& frame) {
  const auto out = frame.view<Element>(0);
  const auto index = frame.view<int32_t>(2);
  const Buffer& source = frame.buffer(1);
  const int64_t bytes = frame.num_cols(1) * static_cast<int64_t>(sizeof(Element));
  for (int64_t i = 0; i < frame.unit.rows; ++i) {
    const int64_t row = *index.row(i) + (*index.row(i) < 0 ? source.rows : 0);  // negative: from the end
    if (row < 0 || row >= source.rows) return Code::INDEX_OUT_OF_RANGE;
    std::memcpy(out.row(i), frame.base<Element>(1) + row * source.cols + frame.first_col(1), bytes);
  }
  return Code::OK;
}

template Code reduce_entries<float>(const Frame&);
template Code row_reduce<float>(const Frame&);
template Code row_dot<float>(const Frame&);
template Code col_sum<float>(const Frame&);
template Code gather<float>(const Frame&);

}  // namespace hpmoe

// RMS norm of rows, and its gradient.
#include <cmath>

#include "bodies.h"
#include "lanes.h"

namespace hpmoe {
namespace {

// Returns the mean of x * y over the columns of a row.
float mean_product(Reader& x, Reader& y, int64_t row, int64_t cols) {
  float lanes[kLanes] = {};
  for (int64_t col = 0; col < cols; col += kChunk) {
    const int64_t n = std::min(kChunk, cols - col);
    dot_lanes(n, x.chunk(row, col, n), y.chunk(row, col, n), lanes);
  }
  return sum_of(lanes) / static_cast<float>(cols);
}

HPMOE_MULTIVERSION
void scale_row(int64_t n, float scale, const float* x, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale;
}

HPMOE_MULTIVERSION
void grad_row(int64_t n, float scale, float factor, const float* g, const float* x, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = scale * (g[i] - x[i] * factor);
}

}  // namespace

Code rms_norm(const Frame& frame) {
  Writer out(frame.view(0));
  Reader x(frame.view(1)), same(frame.view(1));
  const int64_t cols = frame.num_cols(1);
  float scale = 0.0f;
  for_each_chunk(frame.unit.rows, cols, [&](int64_t row, int64_t col, int64_t n) {
    if (col == 0) scale = 1.0f / std::sqrt(mean_product(x, same, row, cols) + frame.op.operands[2].value);
    scale_row(n, scale, x.chunk(row, col, n), out.chunk(row, col));
    out.store(row, col, n);
  });
  return Code::OK;
}

Code rms_norm_grad(const Frame& frame) {
  Writer out(frame.view(0));
  Reader g(frame.view(1)), x(frame.view(2)), same(frame.view(2));
  const int64_t cols = frame.num_cols(2);
  float scale = 0.0f, factor = 0.0f;
  for_each_chunk(frame.unit.rows, cols, [&](int64_t row, int64_t col, int64_t n) {
    if (col == 0) {
      scale = 1.0f / std::sqrt(mean_product(x, same, row, cols) + frame.op.operands[3].value);
      factor = scale * scale * mean_product(g, x, row, cols);
    }
    grad_row(n, scale, factor, g.chunk(row, col, n), x.chunk(row, col, n), out.chunk(row, col));
    out.store(row, col, n);
  });
  return Code::OK;
}

}  // namespace hpmoe

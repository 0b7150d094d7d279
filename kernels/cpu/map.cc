// Elementwise tiles. A row is done in chunks; a broadcast operand is spread over one chunk, so that every inner loop
// runs over contiguous floats.
#include <algorithm>
#include <cmath>

#include "frame.h"
#include "vector_math.h"

namespace hpmoe {
namespace {

constexpr int64_t kChunk = 256;

HPMOE_MULTIVERSION
void map_chunk(MapCode code, int64_t n, const float* a, const float* b, const float* c, float* out) {
#define CASE(name, expression)                             \
  case MapCode::name:                                      \
    for (int64_t i = 0; i < n; ++i) out[i] = (expression); \
    return;
  switch (code) {
    CASE(COPY, a[i])
    CASE(FILL, a[i])
    CASE(NEG, -a[i])
    CASE(EXP, exp_(a[i]))
    CASE(LOG, std::log(a[i]))
    CASE(SQRT, std::sqrt(a[i]))
    CASE(RSQRT, 1.0f / std::sqrt(a[i]))
    CASE(SIGMOID, sigmoid_(a[i]))
    CASE(TANH, tanh_(a[i]))
    CASE(SILU, silu_(a[i]))
    CASE(RELU, maximum_(a[i], 0.0f))
    CASE(ERF, std::erf(a[i]))
    CASE(ABS, abs_(a[i]))
    CASE(RECIPROCAL, 1.0f / a[i])
    CASE(SQUARE, a[i] * a[i])
    CASE(SIN, std::sin(a[i]))
    CASE(COS, std::cos(a[i]))
    CASE(SIGN, a[i] > 0.0f ? 1.0f : a[i] < 0.0f ? -1.0f : a[i])
    CASE(SOFTPLUS, maximum_(a[i], 0.0f) + std::log1p(exp_(-abs_(a[i]))))
    CASE(FLOOR, std::floor(a[i]))
    CASE(ADD, a[i] + b[i])
    CASE(SUB, a[i] - b[i])
    CASE(MUL, a[i] * b[i])
    CASE(DIV, a[i] / b[i])
    CASE(POW, std::pow(a[i], b[i]))
    CASE(MAXIMUM, maximum_(a[i], b[i]))
    CASE(MINIMUM, minimum_(a[i], b[i]))
    CASE(GREATER, a[i] > b[i] ? 1.0f : 0.0f)
    CASE(GREATER_EQUAL, a[i] >= b[i] ? 1.0f : 0.0f)
    CASE(LESS, a[i] < b[i] ? 1.0f : 0.0f)
    CASE(LESS_EQUAL, a[i] <= b[i] ? 1.0f : 0.0f)
    CASE(EQUAL, a[i] == b[i] ? 1.0f : 0.0f)
    CASE(NOT_EQUAL, a[i] != b[i] ? 1.0f : 0.0f)
    CASE(SELECT, a[i] != 0.0f ? b[i] : c[i])
  }
#undef CASE
}

// An input of a MAP: a strided view, or one value everywhere.
template <class Element>
class Input {
 public:
  Input(const Frame& frame, int index) : immediate_(frame.op.operands[index].buffer < 0) {
    if (immediate_) {
      std::fill_n(spread_, kChunk, frame.op.operands[index].value);
    } else {
      view_ = frame.view<Element>(index);
    }
  }

  const float* chunk(int64_t row, int64_t col, int64_t n) {
    if (immediate_) return spread_;
    if (view_.col_stride == 1) return view_.row(row) + col;
    if (col == 0) std::fill_n(spread_, std::min(n, kChunk), static_cast<float>(*view_.row(row)));
    return spread_;
  }

 private:
  const bool immediate_;
  View<Element> view_{};
  float spread_[kChunk];
};

}  // namespace

template <class Element>
Code map(const Frame& frame) {
  const auto code = static_cast<MapCode>(frame.op.param[0]);
  const View<Element> out = frame.view<Element>(0);
  const int last = frame.op.num_operands - 1;
  Input<Element> a(frame, 1), b(frame, std::min(2, last)), c(frame, std::min(3, last));
  for (int64_t row = 0; row < frame.unit.rows; ++row) {
    for (int64_t col = 0; col < frame.task.cols; col += kChunk) {
      const int64_t n = std::min(kChunk, frame.task.cols - col);
      map_chunk(code, n, a.chunk(row, col, n), b.chunk(row, col, n), c.chunk(row, col, n), out.row(row) + col);
    }
  }
  return Code::OK;
}

template Code map<float>(const Frame&);

}  // namespace hpmoe

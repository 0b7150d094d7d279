// SwiGLU and its gradient: silu(gate) * up, the two halves of one array.
#include "frame.h"
#include "vector_math.h"

namespace hpmoe {
namespace {

HPMOE_MULTIVERSION
void swiglu_row(int64_t n, const float* gate, const float* up, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = silu_(gate[i]) * up[i];
}

HPMOE_MULTIVERSION
void swiglu_grad_row(int64_t n, const float* dy, const float* gate, const float* up, float* __restrict dgate,
                     float* __restrict dup) {
  for (int64_t i = 0; i < n; ++i) {
    const float s = sigmoid_(gate[i]), silu = gate[i] * s;
    dgate[i] = dy[i] * up[i] * (s + silu * (1.0f - s));
    dup[i] = dy[i] * silu;
  }
}

}  // namespace

template <class Element>
Code swiglu(const Frame& frame) {
  const auto out = frame.view<Element>(0), gate = frame.view<Element>(1), up = frame.view<Element>(2);
  for (int64_t i = 0; i < frame.unit.rows; ++i) swiglu_row(frame.task.cols, gate.row(i), up.row(i), out.row(i));
  return Code::OK;
}

template <class Element>
Code swiglu_grad(const Frame& frame) {
  const auto dgate = frame.view<Element>(0), dup = frame.view<Element>(1), dy = frame.view<Element>(2);
  const auto gate = frame.view<Element>(3), up = frame.view<Element>(4);
  for (int64_t i = 0; i < frame.unit.rows; ++i) {
    swiglu_grad_row(frame.task.cols, dy.row(i), gate.row(i), up.row(i), dgate.row(i), dup.row(i));
  }
  return Code::OK;
}

template Code swiglu<float>(const Frame&);
template Code swiglu_grad<float>(const Frame&);

}  // namespace hpmoe

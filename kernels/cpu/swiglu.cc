// SwiGLU and its gradient: silu(gate) * up, the two halves of one array.
#include "bodies.h"
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

Code swiglu(const Frame& frame) {
  Writer out(frame.view(0));
  Reader gate(frame.view(1)), up(frame.view(2));
  for_each_chunk(frame.unit.rows, frame.task.cols, [&](int64_t row, int64_t col, int64_t n) {
    swiglu_row(n, gate.chunk(row, col, n), up.chunk(row, col, n), out.chunk(row, col));
    out.store(row, col, n);
  });
  return Code::OK;
}

Code swiglu_grad(const Frame& frame) {
  Writer dgate(frame.view(0)), dup(frame.view(1));
  Reader dy(frame.view(2)), gate(frame.view(3)), up(frame.view(4));
  for_each_chunk(frame.unit.rows, frame.task.cols, [&](int64_t row, int64_t col, int64_t n) {
    swiglu_grad_row(n, dy.chunk(row, col, n), gate.chunk(row, col, n), up.chunk(row, col, n), dgate.chunk(row, col),
                    dup.chunk(row, col));
    dgate.store(row, col, n);
    dup.store(row, col, n);
  });
  return Code::OK;
}

}  // namespace hpmoe

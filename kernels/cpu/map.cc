// Elementwise bodies. A copy between dtypes is a cast.
#include <algorithm>
#include <cmath>

#include "bodies.h"
#include "vector_math.h"

namespace hpmoe {
namespace {

// Returns the remainder with the sign of b, exact like std::fmod.
float remainder(float a, float b) {
  const float left = std::fmod(a, b);
  if (left == 0.0f) return std::copysign(0.0f, b);
  return (b < 0.0f) != (left < 0.0f) ? left + b : left;
}

float floor_div(float a, float b) {
  if (b == 0.0f) return a / b;
  const float left = std::fmod(a, b);
  const float whole = (a - left) / b - (left != 0.0f && (b < 0.0f) != (left < 0.0f) ? 1.0f : 0.0f);
  return whole == 0.0f ? std::copysign(0.0f, a / b) : std::round(whole);
}

// Returns false if the function does not exist.
HPMOE_MULTIVERSION
bool map_chunk(MapCode code, int64_t n, const float* a, const float* b, const float* c, float* out) {
#define CASE(name, expression)                             \
  case MapCode::name:                                      \
    for (int64_t i = 0; i < n; ++i) out[i] = (expression); \
    return true;
  switch (code) {
    CASE(COPY, a[i])
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
    CASE(ROUND, std::nearbyint(a[i]))
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
    CASE(FLOOR_DIV, floor_div(a[i], b[i]))
    CASE(REMAINDER, remainder(a[i], b[i]))
    CASE(SELECT, a[i] != 0.0f ? b[i] : c[i])
  }
#undef CASE
  return false;
}

Reader input(const Frame& frame, int index) {
  const Operand& operand = frame.op.operands[index];
  return operand.buffer < 0 ? Reader(operand.value) : Reader(frame.view(index));
}

}  // namespace

Code map(const Frame& frame) {
  if (is_of_integers(frame)) return map_integers(frame);
  const MapCode code = params::Elementwise::of(frame.op).function;
  const int last = frame.op.num_operands - 1;
  Writer out(frame.view(0));
  Reader a = input(frame, 1), b = input(frame, std::min(2, last)), c = input(frame, std::min(3, last));
  bool is_known = true;
  for_each_chunk(frame.unit.rows, frame.task.cols, [&](int64_t row, int64_t col, int64_t n) {
    is_known &= map_chunk(code, n, a.chunk(row, col, n), b.chunk(row, col, n), c.chunk(row, col, n), out.chunk(row, col));
    if (is_known) out.store(row, col, n);
  });
  return is_known ? Code::OK : Code::BAD_IMAGE;
}

}  // namespace hpmoe

#include "lanes.h"

namespace hpmoe {

#define HPMOE_LANES(i, n, expression)                             \
  int64_t i = 0;                                                  \
  for (; i + kLanes <= n; i += kLanes) {                          \
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] = (expression); \
  }                                                               \
  for (int64_t j = 0; i + j < n; ++j) lanes[j] = (expression);

HPMOE_MULTIVERSION
void sum_lanes(int64_t n, const float* x, float* __restrict lanes){HPMOE_LANES(i, n, lanes[j] + x[i + j])}

HPMOE_MULTIVERSION void dot_lanes(int64_t n, const float* x, const float* y,
                                  float* __restrict lanes){HPMOE_LANES(i, n, lanes[j] + x[i + j] * y[i + j])}

HPMOE_MULTIVERSION void max_lanes(int64_t n, const float* x, float* __restrict lanes) {
  HPMOE_LANES(i, n, maximum_(lanes[j], x[i + j]))
}

namespace {

template <class Combine>
float fold_lanes(float* lanes, Combine combine) {
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) lanes[i] = combine(lanes[i], lanes[i + half]);
  }
  return lanes[0];
}

}  // namespace

float sum_of(float* lanes) {
  return fold_lanes(lanes, [](float a, float b) { return a + b; });
}

float max_of(float* lanes) {
  return fold_lanes(lanes, [](float a, float b) { return maximum_(a, b); });
}

HPMOE_MULTIVERSION
void add(int64_t n, const float* x, float* sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
}

HPMOE_MULTIVERSION
void add_scaled(int64_t n, float scale, const float* x, float* sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += scale * x[i];
}

HPMOE_MULTIVERSION
void take_larger(int64_t n, const float* x, float* largest) {
  for (int64_t i = 0; i < n; ++i) largest[i] = maximum_(largest[i], x[i]);
}

}  // namespace hpmoe

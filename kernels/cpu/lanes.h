// Sums and maxima in a fixed number of lanes, so that their order does not depend on chunks.
#pragma once

#include "rows.h"
#include "vector_math.h"

namespace hpmoe {

constexpr int64_t kLanes = 16;

// Lane j takes elements j, j + kLanes, ... of a row; chunks are whole numbers of lanes.
static_assert(kChunk % kLanes == 0, "the next chunk begins at lane 0");

void sum_lanes(int64_t n, const float* x, float* __restrict lanes);
void dot_lanes(int64_t n, const float* x, const float* y, float* __restrict lanes);
void max_lanes(int64_t n, const float* x, float* __restrict lanes);
float sum_of(float* lanes);
float max_of(float* lanes);

// Adds element by element.
void add(int64_t n, const float* x, float* sum);
void add_scaled(int64_t n, float scale, const float* x, float* sum);
void take_larger(int64_t n, const float* x, float* largest);

}  // namespace hpmoe

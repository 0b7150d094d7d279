// Half-precision storage: bfloat16 and float16 bits to float32 and back.
#pragma once

#include <cstdint>

#include "core/dtypes.h"

namespace hpmoe {

// Exact. `from` holds n elements of a float dtype; of another one come NaN, and NaN is what is stored as one.
void to_float32(Dtype dtype, const void* from, int64_t n, float* to);

// Rounded to the nearest, ties to even; NaN stays NaN, and what a float16 cannot hold becomes infinite.
void from_float32(Dtype dtype, const float* from, int64_t n, void* to);

}  // namespace hpmoe

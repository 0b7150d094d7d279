// Converts bfloat16 and float16 bits to float32 and back.
#pragma once

#include <cstdint>

#include "core/dtypes.h"

namespace hpmoe {

// Exact. `from` holds n elements of a float dtype; for any other dtype the results are NaN, and from_float32() stores
// NaN.
void to_float32(Dtype dtype, const void* from, int64_t n, float* to);

// Rounds to nearest, ties to even. NaN stays NaN, and numbers beyond float16 become infinite.
void from_float32(Dtype dtype, const float* from, int64_t n, void* to);

}  // namespace hpmoe

// Half-precision storage: bfloat16 and float16 bits to float32 and back.
#pragma once

#include <cstdint>

#include "core/protocol.h"

namespace hpmoe {

inline bool is_float(Dtype dtype) {
  return dtype == Dtype::FLOAT32 || dtype == Dtype::BFLOAT16 || dtype == Dtype::FLOAT16;
}

inline int64_t element_size(Dtype dtype) { return dtype == Dtype::BFLOAT16 || dtype == Dtype::FLOAT16 ? 2 : 4; }

// Exact. `from` holds n elements of a float dtype; of another one come NaN, and NaN is what is stored as one.
void to_float32(Dtype dtype, const void* from, int64_t n, float* to);

// Rounded to the nearest, ties to even; NaN stays NaN, and what a float16 cannot hold becomes infinite.
void from_float32(Dtype dtype, const float* from, int64_t n, void* to);

}  // namespace hpmoe

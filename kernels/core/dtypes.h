// The element types of buffers, on host and device.
#pragma once

#include "core/protocol.h"

namespace hpmoe {

HPMOE_DEVICE inline bool is_float(Dtype dtype) {
  return dtype == Dtype::FLOAT32 || dtype == Dtype::BFLOAT16 || dtype == Dtype::FLOAT16;
}

HPMOE_DEVICE inline bool is_integer(Dtype dtype) { return dtype == Dtype::INT32 || dtype == Dtype::INT64; }

HPMOE_DEVICE inline int64_t element_size(Dtype dtype) {
  return dtype == Dtype::BFLOAT16 || dtype == Dtype::FLOAT16 ? 2 : dtype == Dtype::INT64 ? 8 : 4;
}

}  // namespace hpmoe

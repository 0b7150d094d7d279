// The element types of buffers, on host and device.
#pragma once

#include "core/generated/rules.h"
#include "core/generated/structs.h"

namespace hpmoe {

HPMOE_DEVICE inline bool is_float(Dtype dtype) {
  return dtype == Dtype::FLOAT32 || dtype == Dtype::BFLOAT16 || dtype == Dtype::FLOAT16;
}

HPMOE_DEVICE inline bool is_integer(Dtype dtype) { return dtype == Dtype::INT32 || dtype == Dtype::INT64; }

HPMOE_DEVICE inline int64_t element_size(Dtype dtype) {
  switch (dtype) {
    case Dtype::UINT8: return 1;
    case Dtype::BFLOAT16:
    case Dtype::FLOAT16: return 2;
    case Dtype::INT64: return 8;
    default: return 4;
  }
}

}  // namespace hpmoe

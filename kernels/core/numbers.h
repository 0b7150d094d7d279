// The lesser and the greater of two numbers, on host and device.
#pragma once

#include <cstdint>

#include "core/marks.h"

namespace hpmoe {

HPMOE_DEVICE inline int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
HPMOE_DEVICE inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
HPMOE_DEVICE inline int32_t most(int32_t a, int32_t b) { return a > b ? a : b; }
HPMOE_DEVICE inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace hpmoe

// Arithmetic that host and device share: minimum and maximum, and counters that wrap at 2^32.
#pragma once

#include <cstdint>

#include "core/marks.h"

namespace hpmoe {

HPMOE_DEVICE inline int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
HPMOE_DEVICE inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
HPMOE_DEVICE inline int32_t most(int32_t a, int32_t b) { return a > b ? a : b; }
HPMOE_DEVICE inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// Counters wrap at 2^32, and overflow of signed arithmetic is undefined.
HPMOE_DEVICE inline int32_t wrapping_sum(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
HPMOE_DEVICE inline int32_t wrapping_product(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
}
// Returns true if a counter has reached a target; the two are less than 2^31 apart.
HPMOE_DEVICE inline bool is_at_least(int32_t counter, int32_t target) {
  return static_cast<int32_t>(static_cast<uint32_t>(counter) - static_cast<uint32_t>(target)) >= 0;
}

}  // namespace hpmoe

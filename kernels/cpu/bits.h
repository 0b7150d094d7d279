// Reinterprets the bits of a number as another type of the same size.
#pragma once

#include <cstdint>

#include "multiversion.h"

namespace hpmoe {

template <class To, class From>
HPMOE_INLINE To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To result;
  __builtin_memcpy(&result, &value, sizeof(result));
  return result;
}

// Returns yes or no without a branch. For ?: the compiler may branch and duplicate the code that follows.
HPMOE_INLINE uint32_t choose(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = -static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}
HPMOE_INLINE float choose(bool condition, float yes, float no) {
  return bits_as<float>(choose(condition, bits_as<uint32_t>(yes), bits_as<uint32_t>(no)));
}

}  // namespace hpmoe

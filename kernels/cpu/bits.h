// The bits of a number as another type of the same size.
#pragma once

#include "multiversion.h"

namespace hpmoe {

template <class To, class From>
HPMOE_INLINE To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To result;
  __builtin_memcpy(&result, &value, sizeof(result));
  return result;
}

}  // namespace hpmoe

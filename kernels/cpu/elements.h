// Elements of one byte, of quantised rows and weights, as numbers.
#pragma once

#include <cstdint>

#include "core/tile_ops.h"

namespace hpmoe {

// to[i] = element i * scale, of n elements.
void read_elements(Element element, const uint8_t* from, int64_t n, float scale, float* to);

}  // namespace hpmoe

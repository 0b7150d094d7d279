// Converts elements of one byte, of quantised rows and weights, to float32.
#pragma once

#include <cstdint>

#include "core/generated/rules.h"

namespace hpmoe {

// Returns the scale of an e8m0 code: a power of two, or NaN.
float e8m0_value(uint8_t code);

// Sets to[i] = element i * scale for n elements.
void read_elements(Element element, const uint8_t* from, int64_t n, float scale, float* to);

}  // namespace hpmoe

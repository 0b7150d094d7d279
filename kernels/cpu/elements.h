// Elements of one byte, of quantised rows and weights, as numbers.
#pragma once

#include <cstdint>

#include "core/generated/rules.h"

namespace hpmoe {

// What the code of an e8m0 scale stands for: a power of two, or NaN.
float e8m0_value(uint8_t code);

// to[i] = element i * scale, of n elements.
void read_elements(Element element, const uint8_t* from, int64_t n, float scale, float* to);

}  // namespace hpmoe

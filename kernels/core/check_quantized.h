// The check of operations on quantised rows and weights: that elements, scales and sizes fit together.
#pragma once

#include "core/image.h"

namespace hpmoe {

// What is wrong with an op that makes, multiplies or reads quantised rows or weights, or NULL. Its operands are right one by
// one.
const char* check_quantized(const Image& image, const Op& op);

}  // namespace hpmoe

// The check of operations: that their operands, their sizes and the grid of their tasks fit together.
#pragma once

#include "core/image.h"

namespace hpmoe {

// What is wrong with an op of an image whose buffers and routes are right, or NULL: then every task in its grid is right
// too.
const char* check_op(const Image& image, const Op& op);

}  // namespace hpmoe

// Checks operations: operands, their sizes and the grid of tasks must fit together.
#pragma once

#include "core/image.h"

namespace hpmoe {

// Returns the fault of an op, or NULL if every task in its grid is valid. The image's buffers and routes must be valid.
const char* check_op(const Image& image, const Op& op);

}  // namespace hpmoe

// How the operator of a compiled graph finds its kernel.
#pragma once

#include <memory>

#include "bound_kernel.h"

namespace hpmoe {

// Launches of `number` are of this kernel from now on; of none where it is NULL.
void name_kernel(int64_t number, std::shared_ptr<BoundKernel> kernel);

}  // namespace hpmoe

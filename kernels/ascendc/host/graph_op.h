// Maps numbers to kernels for the operator of compiled graphs.
#pragma once

#include <memory>

#include "bound_kernel.h"

namespace hpmoe {

// Sets the kernel of `number` for later launches; NULL removes it.
void name_kernel(int64_t number, std::shared_ptr<BoundKernel> kernel);

}  // namespace hpmoe

// The kernel that launches run: the one in this library, or what hpmoe_twin_use_kernel gave.
#pragma once

#include <cstdint>

namespace twin {

void run_kernel(uint8_t* args);

}  // namespace twin

// The kernel that launches run: the one in this library, or what hpmoe_emulator_use_kernel gave.
#pragma once

#include <cstdint>

namespace emulator {

void run_kernel(uint8_t* args);

}  // namespace emulator

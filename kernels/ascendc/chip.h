// Sizes and rates of the chip that the kernel is compiled for: A2 and A3 (2201), or the 950 (3510). cube_2201.h and
// cube_3510.h have the instructions that differ; no other file distinguishes chips.
#pragma once

#include <cstdint>

#if defined(__NPU_ARCH__)  // set by the device compiler
#define HPMOE_CHIP __NPU_ARCH__
#elif !defined(HPMOE_CHIP)  // set by a build of the emulator
#define HPMOE_CHIP 2201
#endif

namespace hpmoe {

#if HPMOE_CHIP == 2201
// UB without the reserve flag, which excludes one of Select's overloads.
constexpr int32_t kBytesUb = 188160, kBytesL1 = 524032, kBytesL0c = 131072;
constexpr int64_t kCyclesPerUs = 50;  // of the system counter
#elif HPMOE_CHIP == 3510
// UB without 2 KB of the API and 6 KB that registers may spill to.
constexpr int32_t kBytesUb = 253952, kBytesL1 = 524032, kBytesL0c = 262144;
constexpr int64_t kCyclesPerUs = 1000;
#else
#error "the kernel knows the chips 2201 (A2 and A3) and 3510 (950)"
#endif

}  // namespace hpmoe

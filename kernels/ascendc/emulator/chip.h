// The chip that this emulator stands for, as its public documents describe it: A2 and A3 (2201), or the 950 (3510).
#pragma once

#include <cstdint>

#ifndef HPMOE_EMULATOR_CHIP
#define HPMOE_EMULATOR_CHIP 2201
#endif

namespace emulator {

enum class Memory { UB, L1, L0A, L0B, L0C };
constexpr int kNumMemories = 5;
constexpr uint32_t kMemoryAlignment[kNumMemories] = {32, 32, 512, 512, 64};

// As much of each memory as a kernel may use. Of UB that is 192 KB without the runtime's 8 KB, or 256 KB without 2 KB of the
// API and 6 KB that registers spill to.
#if HPMOE_EMULATOR_CHIP == 3510
constexpr uint32_t kMemoryBytes[kNumMemories] = {253952, 524032, 64 * 1024, 64 * 1024, 262144};
constexpr int64_t kSystemCyclesPerUs = 1000;
#else
constexpr uint32_t kMemoryBytes[kNumMemories] = {188160, 524032, 64 * 1024, 64 * 1024, 131072};
constexpr int64_t kSystemCyclesPerUs = 50;
#endif

// A 950 has no way from L1 to global memory, so that its AIC have no MTE3; its scalar units add to global memory; its L0A
// has columns of fractals, and an instruction of its own loads L0A and L0B.
constexpr bool kIs950 = HPMOE_EMULATOR_CHIP == 3510;

}  // namespace emulator

// The chip that the emulator models, from its public documents: A2 and A3 (2201), or the 950 (3510).
#pragma once

#include <cstdint>

#ifndef HPMOE_EMULATOR_CHIP
#define HPMOE_EMULATOR_CHIP 2201
#endif

namespace emulator {

enum class Memory { UB, L1, L0A, L0B, L0C };
constexpr int kNumMemories = 5;
constexpr uint32_t kMemoryAlignment[kNumMemories] = {32, 32, 512, 512, 64};

// Bytes of each memory that a kernel may use. UB: 192 KB less 8 KB of the runtime, or 256 KB less 2 KB of the API and 6
// KB that registers may spill to.
#if HPMOE_EMULATOR_CHIP == 3510
constexpr uint32_t kMemoryBytes[kNumMemories] = {253952, 524032, 64 * 1024, 64 * 1024, 262144};
constexpr int64_t kSystemCyclesPerUs = 1000;
#else
constexpr uint32_t kMemoryBytes[kNumMemories] = {188160, 524032, 64 * 1024, 64 * 1024, 131072};
constexpr int64_t kSystemCyclesPerUs = 50;
#endif

// A 950 has no path from L1 to global memory, so its AIC have no MTE3. Its scalar units add to global memory. Its L0A has
// columns of fractals, and one instruction loads L0A and L0B.
constexpr bool kIs950 = HPMOE_EMULATOR_CHIP == 3510;

}  // namespace emulator

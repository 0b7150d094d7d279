// Products on the matrix units of an x86-64 core (AMX), which multiply bfloat16 and sum in float32.
#pragma once

#include "gemm.h"

// Whether the compiler knows them.
#if defined(__x86_64__) && defined(__linux__) && (defined(__clang__) || __GNUC__ >= 11)
#define HPMOE_HAS_AMX_TARGET 1
#else
#define HPMOE_HAS_AMX_TARGET 0
#endif

namespace hpmoe {

// Whether this machine has them and the system lets the process use them.
bool has_amx();

// c = a @ b for bfloat16 a and b, summed in float32, on a machine that has_amx(); a float32 c may be added to. Numbers
// below the smallest normal float32 count as zero there.
void amx_gemm(const Sizes& sizes, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate);

// c = a @ b or c += a @ b, all float32.
using Float32Gemm = void(const Sizes& sizes, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate);

// The same on a machine that has_amx(), each float32 as the sum of three bfloat16. Blocks with numbers for which that is
// not as exact as float32 come from `ordinary`.
void amx_float32_gemm(const Sizes& sizes, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate,
                      Float32Gemm ordinary);

}  // namespace hpmoe

// Products on the matrix units of an x86-64 core (AMX), which multiply bfloat16 and sum in float32.
#pragma once

#include "gemm.h"

// True if the compiler has the intrinsics of AMX.
#if defined(__x86_64__) && defined(__linux__) && (defined(__clang__) || __GNUC__ >= 11)
#define HPMOE_HAS_AMX_TARGET 1
#else
#define HPMOE_HAS_AMX_TARGET 0
#endif

namespace hpmoe {

// Returns true if this machine has AMX and the system lets the process use it.
bool has_amx();

// Computes c = a @ b for bfloat16 a and b, summed in float32, on a machine with has_amx(); adds to a float32 c if
// `accumulate`. AMX reads numbers below the smallest normal float32 as zero.
void amx_gemm(const Sizes& sizes, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate);

// A product of float32 matrices: c = a @ b, or c += a @ b.
using Float32Gemm = void(const Sizes& sizes, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate);

// Computes the float32 product on a machine with has_amx(), each float32 as a sum of three bfloat16. Calls `ordinary` for
// blocks with numbers for which three bfloat16 are less exact than float32.
void amx_float32_gemm(const Sizes& sizes, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate,
                      Float32Gemm ordinary);

}  // namespace hpmoe

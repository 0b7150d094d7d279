// Elementwise functions without a vector instruction of their own. Each computes in place in `a`, whose length is padded
// to a multiple of 64, and overwrites x, y, z and w.
#pragma once

#include "swiglu_bodies.h"

namespace hpmoe {

// Computes out = a mode b ? yes : no, a piece at a time; `mask` gets a bit for each element. Select also uses the 8 KB of
// UB that no kernel may use.
__aicore__ inline void choose(const Bytes& mask, AscendC::CMPMODE mode, const Floats& a, const Floats& b, const Floats& out,
                              const Floats& yes, const Floats& no, int32_t count) {
  for (int32_t i = 0; i < count; i += kPieceFloats) {
    const auto part = static_cast<uint32_t>(round_up(least(kPieceFloats, count - i), kFloatsAtOnce));
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Compare(mask, a[i], b[i], mode, part);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Select(out[i], mask, yes[i], no[i], AscendC::SELMODE::VSEL_TENSOR_TENSOR_MODE, part);
  }
  AscendC::PipeBarrier<PIPE_V>();
}

// Sets a = 1 if the comparison with b holds, else 0.
__aicore__ inline void compare(const Bytes& mask, AscendC::CMPMODE mode, const Floats& a, const Floats& b, const Floats& x,
                               const Floats& y, int32_t count) {
  AscendC::Duplicate(x, 1.0f, count);
  AscendC::Duplicate(y, 0.0f, count);
  choose(mask, mode, a, b, a, x, y, count);
}

// Sets a = b if a is not 0, else c.
__aicore__ inline void select(const Bytes& mask, const Floats& a, const Floats& b, const Floats& c, const Floats& x,
                              int32_t count) {
  AscendC::Duplicate(x, 0.0f, count);
  choose(mask, AscendC::CMPMODE::NE, a, x, a, b, c, count);
}

__aicore__ inline void sign(const Bytes& mask, const Floats& a, const Floats& x, const Floats& y, const Floats& z,
                            int32_t count) {
  AscendC::Duplicate(x, 0.0f, count);
  AscendC::Duplicate(y, 1.0f, count);
  choose(mask, AscendC::CMPMODE::GT, a, x, z, y, a, count);
  AscendC::Duplicate(y, -1.0f, count);
  choose(mask, AscendC::CMPMODE::LT, a, x, a, y, z, count);
}

__aicore__ inline void floor(const Floats& to, const Floats& a, int32_t count) {
  in_order::Cast(to, a, AscendC::RoundMode::CAST_FLOOR, count);
}

// Computes max(a, 0) + log(1 + e) with e = exp(-|a|). log(u) of u = 1 + e misses the part of e that u lost to rounding,
// so it is multiplied by e / (u - 1); if u is 1, the result is e.
__aicore__ inline void softplus(const Bytes& mask, const Floats& a, const Floats& x, const Floats& y, const Floats& z,
                                const Floats& w, int32_t count) {
  AscendC::Abs(x, a, count);
  AscendC::Duplicate(w, 0.0f, count);
  AscendC::PipeBarrier<PIPE_V>();
  in_order::Muls(x, x, -1.0f, count);
  in_order::Exp(x, x, count);
  in_order::Adds(y, x, 1.0f, count);
  in_order::Adds(z, y, -1.0f, count);
  in_order::Ln(y, y, count);
  in_order::Mul(y, y, x, count);
  AscendC::Div(y, y, z, count);
  choose(mask, AscendC::CMPMODE::EQ, z, w, y, x, y, count);
  in_order::Max(a, a, w, count);
  AscendC::Add(a, a, y, count);
}

// Sets to = c[0] z^n + ... + c[n] for `size` coefficients.
__aicore__ inline void polynomial(const Floats& to, const Floats& z, const float* coefficients, int32_t size,
                                  int32_t count) {
  in_order::Duplicate(to, coefficients[0], count);
  for (int32_t i = 1; i < size; ++i) {
    in_order::Mul(to, to, z, count);
    in_order::Adds(to, to, coefficients[i], count);
  }
}

// Computes erf as a times a polynomial in t = 2 (a / 3.92)^2 - 1, fitted at Chebyshev points to erf(a) / a for |a| <=
// 3.92; beyond that erf is 1 in float32. Error: 4e-7.
__aicore__ inline void erf(const Floats& a, const Floats& x, const Floats& y, int32_t count) {
  const float c[] = {0.00212785818f, -0.00456754768f, 0.00182033042f, -0.0028870787f, 0.014343502f,
                     -0.0236534242f, 0.029609212f,    -0.0419346704f, 0.0584258272f,  -0.0743366138f,
                     0.0905922123f,  -0.10914975f,    0.134084837f,   -0.180109422f,  0.360736809f};
  in_order::Mins(a, a, 3.92f, count);
  in_order::Maxs(a, a, -3.92f, count);
  in_order::Mul(x, a, a, count);
  in_order::Muls(x, x, 0.130154102f, count);
  in_order::Adds(x, x, -1.0f, count);
  polynomial(y, x, c, 15, count);
  AscendC::Mul(a, a, y, count);
}

// Computes sin(a), or cos(a) with `shift` 0.5. With a = (m + shift) pi + r and |r| <= pi / 2 the result is (-1)^m sin(r),
// or -(-1)^m sin(r). Pi is split in three parts; m times the first two is exact for |a| < 25000. sin(r) / r is a
// polynomial in r^2, fitted at Chebyshev points. Error for these a: 5e-7.
__aicore__ inline void sine(const Floats& a, float shift, const Floats& x, const Floats& y, const Floats& z, int32_t count) {
  const float c[] = {-2.38892709e-08f, 2.75252745e-06f, -0.000198408613f, 0.00833333098f, -0.166666666f, 1.0f};
  in_order::Muls(x, a, 0.318309886f, count);
  in_order::Adds(x, x, -shift, count);
  in_order::Cast(x, x, AscendC::RoundMode::CAST_RINT, count);  // m
  in_order::Muls(y, x, 0.5f, count);
  floor(y, y, count);
  in_order::Muls(y, y, 4.0f, count);
  in_order::Muls(z, x, -2.0f, count);
  in_order::Add(y, y, z, count);  // -2 where m is odd, else 0
  in_order::Adds(y, y, 1.0f, count);
  in_order::Muls(y, y, shift > 0.0f ? -1.0f : 1.0f, count);
  in_order::Adds(x, x, shift, count);
  const float parts[] = {-3.140625f, -0.0009675025939941406f, -1.5099580252808664e-07f};
  for (int32_t i = 0; i < 3; ++i) {
    in_order::Muls(z, x, parts[i], count);
    in_order::Add(a, a, z, count);
  }
  in_order::Mul(y, y, a, count);
  in_order::Mul(x, a, a, count);
  polynomial(z, x, c, 6, count);
  AscendC::Mul(a, y, z, count);
}

// Computes exp(b log|a|); 1 if b is 0 or a is 1. The result has the sign of a, also of -0, if b is odd, and is NaN if a
// is negative and b is not an integer. Overwrites b.
__aicore__ inline void power(const Bytes& mask, const Floats& a, const Floats& b, const Floats& x, const Floats& y,
                             const Floats& z, int32_t count) {
  AscendC::Abs(x, a, count);
  AscendC::Duplicate(y, 1.0f, count);
  AscendC::Duplicate(z, 0.0f, count);
  AscendC::PipeBarrier<PIPE_V>();
  in_order::Ln(x, x, count);
  in_order::Mul(x, x, b, count);
  AscendC::Exp(x, x, count);
  choose(mask, AscendC::CMPMODE::EQ, b, z, x, y, x, count);
  choose(mask, AscendC::CMPMODE::EQ, a, y, x, y, x, count);
  in_order::Muls(z, b, 0.5f, count);
  floor(z, z, count);
  AscendC::Muls(z, z, -2.0f, count);
  floor(y, b, count);
  in_order::Add(z, z, b, count);
  in_order::Adds(z, z, -1.0f, count);
  AscendC::Abs(z, z, count);  // 0 if b is odd, else at least 2^-24
  AscendC::Sub(y, y, b, count);
  AscendC::PipeBarrier<PIPE_V>();
  in_order::Muls(z, z, -33554432.0f, count);
  in_order::Adds(z, z, 1.0f, count);
  AscendC::Maxs(z, z, 0.0f, count);
  AscendC::Abs(b, a, count);
  AscendC::PipeBarrier<PIPE_V>();
  in_order::Muls(z, z, -2.0f, count);
  in_order::Adds(z, z, 1.0f, count);  // the sign
  in_order::Mins(b, b, 1.0f, count);
  in_order::Mul(b, b, y, count);
  in_order::Sqrt(b, b, count);  // 0 if b was an integer or a is 0, else NaN
  in_order::Add(z, z, b, count);
  in_order::Mul(y, x, z, count);
  AscendC::Duplicate(z, 1.0f, count);
  AscendC::Duplicate(b, 0.0f, count);
  AscendC::PipeBarrier<PIPE_V>();
  in_order::Div(z, z, a, count);
  AscendC::Min(z, z, a, count);
  choose(mask, AscendC::CMPMODE::LT, z, b, a, y, x, count);
}

}  // namespace hpmoe

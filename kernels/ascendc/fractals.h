// Operands of products as fractals: 512 bytes, 16 rows by the columns in 32 bytes (32 of int8, 16 in half precision, 8 of
// float32). This file loads rows of global memory into columns of fractals in L1; cube_*.h loads them further.
#pragma once

#include "device.h"

namespace hpmoe {

constexpr int32_t kFractal = 16, kFractalBytes = 512;
template <class T>
constexpr int32_t kFractalCols = 32 / sizeof(T);
template <class T>
constexpr int32_t kFractalSize = kFractalBytes / sizeof(T);

// Columns of a square in which an operand with k down is transposed; a square of int8 has two fractals.
template <class T>
constexpr int32_t kTransposed = kFractalCols<T> > kFractal ? kFractalCols<T> : kFractal;

// Both half-precision types are moved as half.
template <class T>
using Fractals = AscendC::LocalTensor<T>;

__aicore__ inline int32_t fractals(int32_t n) { return (n + kFractal - 1) / kFractal; }
// Rows of a column of L1 that `n` rows need: whole squares if these are transposed.
template <class T>
__aicore__ inline int32_t fractals_down(int32_t n, bool is_transposed) {
  return fractals(is_transposed ? round_up(n, kTransposed<T>) : n);
}

template <class T>
__aicore__ inline void clear_l1(const Fractals<T>& to, int32_t rows, int32_t cols) {
  const int32_t row_bytes = round_up(fractals(cols) * kFractal * static_cast<int32_t>(sizeof(T)), 32);
  const int32_t bytes = fractals(rows) * kFractal * row_bytes;
  AscendC::Fill(to.template ReinterpretCast<int32_t>(),
                AscendC::InitConstValueParams<int32_t>(1, static_cast<uint16_t>(bytes / 32), 0, 0));
}

// Loads rows that are ld elements apart into columns of fractals of `column` rows.
template <class T>
__aicore__ inline void copy_rows(const Fractals<T>& to, uint64_t from, int32_t rows, int32_t cols, int32_t ld,
                                 int32_t column) {
  const AscendC::Nd2NzParams params(1, static_cast<uint16_t>(rows), static_cast<uint16_t>(cols), 0,
                                    static_cast<uint16_t>(ld), static_cast<uint16_t>(column * kFractal), 1, 0);
  AscendC::DataCopy(to, global_at<T>(from), params);
}
// Loads a unit matrix of m rows, k to the right: zeros, and on the diagonal the fractals at `unit` in global memory.
template <class T>
__aicore__ inline void load_unit(const Fractals<T>& to, uint64_t unit, int32_t m) {
  const int32_t num_m = fractals(m), num_beside = kFractal / kFractalCols<T>;
  clear_l1(to, m, m);
  AscendC::PipeBarrier<PIPE_MTE2>();
  for (int32_t i = 0; i < num_m * num_beside; ++i)
    AscendC::DataCopy(to[(i * num_m + i / num_beside) * kFractalSize<T>],
                      global_at<T>(unit + i % num_beside * kFractalBytes), kFractalSize<T>);
}

// The part of an operand in L1 that is loaded to L0: k deep from k1 on, `lines` fractals of the other side after
// first_line. `pitch`: l1_pitch of the operand.
struct Part {
  int32_t k1, k, first_line, lines, pitch;
  bool k_is_down;
};

}  // namespace hpmoe

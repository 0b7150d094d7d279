// Operands of products in fractals: 512 bytes of 16 rows and of the columns that 32 bytes hold, 16 in half precision and 8
// in float32. How rows of global memory come to L1 in fractals, and how L0A and L0B get them.
//
// L0A and L0B want what is multiplied beside each other. An operand whose rows are stored along the depth of the product, k
// to the right, has it so; one with k down is turned on its way from L1 to L0: in half precision fractal by fractal, in
// float32 in squares of 16 x 16, two fractals beside each other. L1 holds columns of fractals, and squares in rows.
#pragma once

#include "device.h"

namespace hpmoe {

constexpr int32_t kFractal = 16, kFractalBytes = 512;
template <class T>
constexpr int32_t kFractalCols = 32 / sizeof(T);
template <class T>
constexpr int32_t kFractalSize = kFractalBytes / sizeof(T);
template <class T>
constexpr bool kIsSquared = sizeof(T) == sizeof(float);

// Both half-precision types are moved alike, as half.
template <class T>
using Fractals = AscendC::LocalTensor<T>;

__aicore__ inline int32_t fractals(int32_t n) { return (n + kFractal - 1) / kFractal; }

template <class T>
__aicore__ inline void clear_l1(const Fractals<T>& to, int32_t rows, int32_t cols) {
  const int32_t bytes = fractals(rows) * fractals(cols) * kFractal * kFractal * static_cast<int32_t>(sizeof(T));
  AscendC::Fill(to.template ReinterpretCast<int32_t>(),
                AscendC::InitConstValueParams<int32_t>(1, static_cast<uint16_t>(bytes / 32), 0, 0));
}

// Rows ld elements apart, in columns of fractals; `column` of them make one.
template <class T>
__aicore__ inline void copy_rows(const Fractals<T>& to, uint64_t from, int32_t rows, int32_t cols, int32_t ld,
                                 int32_t column) {
  const AscendC::Nd2NzParams params(1, static_cast<uint16_t>(rows), static_cast<uint16_t>(cols), 0,
                                    static_cast<uint16_t>(ld), static_cast<uint16_t>(column * kFractal), 1, 0);
  AscendC::DataCopy(to, global_at<T>(from), params);
}
// Rows into L1 as load_l0a and load_l0b take them from there.
template <class T>
__aicore__ inline void load_l1(const Fractals<T>& to, uint64_t from, int32_t rows, int32_t cols, int32_t ld,
                               bool k_is_down) {
  if (!kIsSquared<T> || !k_is_down) return copy_rows(to, from, rows, cols, ld, fractals(rows));
  for (int32_t row = 0; row < rows; row += kFractal) {
    const uint64_t start = from + static_cast<uint64_t>(row) * ld * sizeof(T);
    copy_rows(to[row * fractals(cols) * kFractal], start, least(kFractal, rows - row), cols, ld, 1);
  }
}

// A unit matrix of m rows, k to the right: zeros, and on the diagonal the fractals at `unit` in global memory.
template <class T>
__aicore__ inline void load_unit(const Fractals<T>& to, uint64_t unit, int32_t m) {
  const int32_t num_m = fractals(m), num_beside = kFractal / kFractalCols<T>;
  clear_l1(to, m, m);
  AscendC::PipeBarrier<PIPE_MTE2>();
  for (int32_t i = 0; i < num_m * num_beside; ++i)
    AscendC::DataCopy(to[(i * num_m + i / num_beside) * kFractalSize<T>],
                      global_at<T>(unit + i % num_beside * kFractalBytes), kFractalSize<T>);
}

// What of an operand in L1 goes to L0: k deep from k1 on, `lines` fractals of the other side from the one after first_line
// on. `pitch`: how many fractals a column of L1 has, or squares a row.
struct Part {
  int32_t k1, k, first_line, lines, pitch;
  bool k_is_down;
};

// Cells of L1, fractals or squares, that make rows of L0, each `row_size` fractals later. A square is turned into two
// fractals, which stay beside each other in L0A and come one above the other in L0B.
struct Cells {
  int32_t first, rows, row_step, cols, col_step, row_size;
  bool is_turned, keeps_squares;
};

template <class T>
__aicore__ inline void load_l0(const Fractals<T>& to, const Fractals<T>& from, const Cells& cells) {
  if constexpr (kIsSquared<T>) {
    if (cells.is_turned) {
      AscendC::LoadData2dTransposeParams params;
      params.repeatTimes = static_cast<uint8_t>(cells.cols);
      params.srcStride = static_cast<uint16_t>(cells.col_step);
      params.dstGap = cells.keeps_squares ? 1 : 0;
      params.dstFracGap = static_cast<uint16_t>(cells.keeps_squares ? 0 : cells.cols - 1);
      for (int32_t i = 0; i < cells.rows; ++i) {
        params.startIndex = static_cast<uint16_t>(cells.first + i * cells.row_step);
        AscendC::LoadDataWithTranspose(to[i * cells.row_size * kFractalSize<T>], from, params);
      }
      return;
    }
  }
  AscendC::LoadData2DParams params;
  params.repeatTimes = static_cast<uint8_t>(cells.cols);
  params.srcStride = static_cast<uint16_t>(cells.col_step);
  params.ifTranspose = cells.is_turned;
  for (int32_t i = 0; i < cells.rows; ++i) {
    params.startIndex = static_cast<uint16_t>(cells.first + i * cells.row_step);
    AscendC::LoadData(to[i * cells.row_size * kFractalSize<T>], from, params);
  }
}

// The cells of a part: the first, from one to the next along either side, how many the depth has, and how deep each is.
struct Walk {
  int32_t first, line_step, depth_step, depth, deep;
};
template <class T>
__aicore__ inline Walk walk(const Part& part) {
  const bool is_across = part.k_is_down && !kIsSquared<T>;
  const int32_t line_step = is_across ? part.pitch : 1, depth_step = is_across ? 1 : part.pitch;
  const int32_t deep = part.k_is_down ? kFractal : kFractalCols<T>;
  return {part.first_line * line_step + part.k1 / deep * depth_step, line_step, depth_step, (part.k + deep - 1) / deep,
          deep};
}

// L0A takes rows of fractals along k, in float32 an even number of them: Mmad is told so.
template <class T>
__aicore__ inline void load_l0a(const Fractals<T>& to, const Fractals<T>& from, const Part& part) {
  const Walk w = walk<T>(part);
  const int32_t row_size = fractals(part.k) * kFractal / kFractalCols<T>;
  load_l0(to, from, {w.first, part.lines, w.line_step, w.depth, w.depth_step, row_size, part.k_is_down, true});
}
// L0B takes rows of fractals across k; a row of squares makes two of them.
template <class T>
__aicore__ inline void load_l0b(const Fractals<T>& to, const Fractals<T>& from, const Part& part) {
  const Walk w = walk<T>(part);
  const int32_t row_size = part.lines * (w.deep / kFractalCols<T>);
  load_l0(to, from, {w.first, w.depth, w.depth_step, part.lines, w.line_step, row_size, part.k_is_down, false});
}

}  // namespace hpmoe

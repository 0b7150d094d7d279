// The matrix core of A2 and A3: the layout of operands in L1, loads to L0A and L0B, and signals.
//
// L0A and L0B need adjacent k. An operand whose rows are stored along k is loaded as it is. An operand with k down is
// transposed from L1 to L0: fractal by fractal in half precision, in squares of 16 x 16 (two horizontally adjacent
// fractals) in float32, and in squares of 32 x 32 (two vertically adjacent fractals) in int8. L1 holds columns of
// fractals, and rows of squares for float32.
#pragma once

#include "fractals.h"
#include "ring.h"

namespace hpmoe {

constexpr bool kHasFp8Products = false;
constexpr int32_t kBytesOfScales = 0;  // of L1

template <class T>
constexpr bool kIsSquared = sizeof(T) == sizeof(float);
// True if Mmad must assume an even number of fractals in each row of L0A.
template <class T>
constexpr bool kAlignsDepth = kIsSquared<T>;

// Elements of a column of fractals in L1, or of a row of squares.
template <class T>
__aicore__ inline int32_t l1_pitch(int32_t lines, int32_t depth, bool k_is_down) {
  return k_is_down && !kIsSquared<T> ? depth : lines;
}

// Loads rows into L1 in the layout that load_l0a and load_l0b read.
template <class T>
__aicore__ inline void load_l1(const Fractals<T>& to, uint64_t from, int32_t rows, int32_t cols, int32_t ld,
                               bool k_is_down) {
  if (!kIsSquared<T> || !k_is_down) return copy_rows(to, from, rows, cols, ld, fractals_down<T>(rows, k_is_down));
  for (int32_t row = 0; row < rows; row += kFractal) {
    const uint64_t start = from + static_cast<uint64_t>(row) * ld * sizeof(T);
    copy_rows(to[row * fractals(cols) * kFractal], start, least(kFractal, rows - row), cols, ld, 1);
  }
}

// Loads cells of L1 (fractals or squares) into rows of L0, `row_size` fractals apart. A transposed square becomes two
// fractals, horizontally adjacent in L0A and vertically adjacent in L0B.
struct Cells {
  int32_t first, rows, row_step, cols, col_step, row_size;
  bool is_transposed, keeps_squares;
};

template <class T>
__aicore__ inline void load_l0(const Fractals<T>& to, const Fractals<T>& from, const Cells& cells) {
  if constexpr (kIsSquared<T>) {
    if (cells.is_transposed) {
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
  params.ifTranspose = cells.is_transposed;
  for (int32_t i = 0; i < cells.rows; ++i) {
    params.startIndex = static_cast<uint16_t>(cells.first + i * cells.row_step);
    AscendC::LoadData(to[i * cells.row_size * kFractalSize<T>], from, params);
  }
}

// Loads a part whose rows of fractals are adjacent in L0, with one instruction: the img2col of an image of one row with 1
// x 1 filters. It is a matrix of `down` rows from `first_down` on and `across` fractals after first_across. For L0A the
// matrix can be transposed as a whole; for L0B it always is.
struct Sides {
  int32_t first_down, down, first_across, across, pitch;
};
template <class T>
__aicore__ inline void load_at_once(const Fractals<T>& to, const Fractals<T>& from, const Sides& sides, bool is_transposed) {
  AscendC::LoadData3DParamsV2<T> params;
  params.l1H = 1;
  params.l1W = static_cast<uint16_t>(sides.pitch * kFractal);
  params.channelSize = static_cast<uint16_t>((sides.first_across + sides.across) * kFractalCols<T>);
  params.kStartPt = static_cast<uint16_t>(sides.first_across * kFractalCols<T>);
  params.kExtension = static_cast<uint16_t>(sides.across * kFractalCols<T>);
  params.mStartPt = static_cast<uint16_t>(sides.first_down);
  params.mExtension = static_cast<uint16_t>(sides.down);
  params.enTranspose = is_transposed;
  AscendC::LoadData(to, from, params);
}

// The cells of a part that is loaded row by row: the first cell, the number of cells along k, and their depth. Cells of a
// line are adjacent; the next depth is part.pitch later.
struct Walk {
  int32_t first, depth, deep;
};
template <class T>
__aicore__ inline Walk walk(const Part& part) {
  const int32_t deep = part.k_is_down ? kFractal : kFractalCols<T>;
  return {part.first_line + part.k1 / deep * part.pitch, (part.k + deep - 1) / deep, deep};
}

// L0A has rows of fractals along k, for float32 an even number of them, which Mmad is told.
template <class T>
__aicore__ inline void load_l0a(const Fractals<T>& to, const Fractals<T>& from, const Part& part) {
  const Walk w = walk<T>(part);
  const int32_t row_size = most(w.depth, fractals(part.k) * kFractal / kFractalCols<T>);
  const int32_t first_deep = part.k1 / w.deep;
  if (!part.k_is_down && row_size == w.depth)
    return load_at_once(to, from, {part.first_line * kFractal, part.lines * kFractal, first_deep, w.depth, part.pitch},
                        false);
  if (part.k_is_down && !kIsSquared<T>)
    return load_at_once(to, from, {part.k1, w.depth * kFractal, part.first_line, part.lines, part.pitch}, true);
  load_l0(to, from, {w.first, part.lines, 1, w.depth, part.pitch, row_size, part.k_is_down, true});
}
// Loads squares of int8 with k down. Each is transposed into two successive fractals of L0B; a column of L1 has a square
// for each 32 of the depth.
__aicore__ inline void load_transposed_bytes(const Fractals<int8_t>& to, const Fractals<int8_t>& from, const Part& part) {
  constexpr int32_t kSquare = kTransposed<int8_t>, kLines = kSquare / kFractal;
  AscendC::LoadData2dTransposeParams params;
  params.repeatTimes = static_cast<uint8_t>(part.lines / kLines);
  params.srcStride = static_cast<uint16_t>(part.pitch / kLines);
  params.dstGap = 1;
  for (int32_t k = 0; k < part.k; k += kSquare) {
    params.startIndex = static_cast<uint16_t>(part.first_line / kLines * (part.pitch / kLines) + (part.k1 + k) / kSquare);
    AscendC::LoadDataWithTranspose(to[k / kSquare * part.lines * kFractalSize<int8_t>], from, params);
  }
}

// L0B has rows of fractals across k; a row of squares becomes two of them.
template <class T>
__aicore__ inline void load_l0b(const Fractals<T>& to, const Fractals<T>& from, const Part& part) {
  if constexpr (sizeof(T) == sizeof(int8_t)) {
    if (part.k_is_down) return load_transposed_bytes(to, from, part);
  }
  const Walk w = walk<T>(part);
  if (part.k_is_down && !kIsSquared<T>)
    return load_at_once(to, from, {part.k1, w.depth * kFractal, part.first_line, part.lines, part.pitch}, true);
  const int32_t row_size = part.lines * (w.deep / kFractalCols<T>);
  load_l0(to, from, {w.first, w.depth, part.pitch, part.lines, 1, row_size, part.k_is_down, false});
}

// This chip has no fp8 products and no scales.
__aicore__ inline void load_scales(const Fractals<int8_t>&, uint64_t, int32_t, int32_t, int32_t) {}
__aicore__ inline void load_l0_and_scales(const Fractals<int8_t>&, const Fractals<int8_t>&, const Fractals<int8_t>&,
                                          const Part&, int32_t) {}
__aicore__ inline void multiply_fp8(const AscendC::LocalTensor<float>&, const Fractals<int8_t>&, const Fractals<int8_t>&,
                                    const AscendC::MmadParams&, bool) {}

// Adds to counters after all earlier results are written: DMA adds a block of L1 to the words of the counter's line.
class CounterAdder {
 public:
  static constexpr int32_t kBytesOfL1 = 4 * 32;

  __aicore__ inline void init(AscendC::TPipe* pipe, const AscendC::LocalTensor<int32_t>& blocks) {
    blocks_ = blocks;
    for (int32_t i = 0; i < kCount; ++i) written_[i] = pipe->AllocEventID<AscendC::HardEvent::FIX_MTE3>();
    signals_.init(pipe);
  }
  __aicore__ inline void end() { signals_.end(); }

  __aicore__ inline void add(uint64_t counter, int32_t amount) {
    const int32_t i = next_;
    next_ = (next_ + 1) % kCount;
    const AscendC::LocalTensor<int32_t> block = blocks_[i * kWords];
    signals_.wait_free(i);
    AscendC::SetFlag<AscendC::HardEvent::FIX_MTE3>(written_[i]);
    AscendC::Fill(block, AscendC::InitConstValueParams<int32_t>(1, 1, 0, amount));
    signals_.set_full(i);
    AscendC::WaitFlag<AscendC::HardEvent::FIX_MTE3>(written_[i]);
    signals_.wait_full(i);
    AscendC::SetAtomicAdd<int32_t>();
    AscendC::DataCopy(global_at<int32_t>(counter), block, kWords);
    AscendC::SetAtomicNone();
    signals_.set_free(i);
  }

 private:
  static constexpr int32_t kCount = 4, kWords = 8;
  static_assert(kCount * kWords * sizeof(int32_t) == kBytesOfL1, "each has a block of 32 bytes");

  AscendC::LocalTensor<int32_t> blocks_;
  Ring<AscendC::HardEvent::MTE2_MTE3, AscendC::HardEvent::MTE3_S, kCount> signals_;
  AscendC::TEventID written_[kCount];
  int32_t next_ = 0;
};

}  // namespace hpmoe

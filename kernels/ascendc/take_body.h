// Gathers elements of each row at the columns that indices name.
#pragma once

#include "column_bodies.h"

namespace hpmoe {

// Computes the column of each index as float32, from the first column on. Overwrites `work`.
__aicore__ inline void count_columns(const Floats& to, const Floats& work, const AscendC::LocalTensor<int32_t>& index,
                                     int32_t cols, int32_t count) {
  in_order::Cast(to, index, AscendC::RoundMode::CAST_RINT, count);
  in_order::Muls(work, to, -1.0f, count);
  in_order::Mins(work, work, 1.0f, count);
  in_order::Maxs(work, work, 0.0f, count);  // 1 for a negative index
  in_order::Axpy(to, work, static_cast<float>(cols), count);
}

// Computes out[t, k] = x[t, index[t, k]]; a negative index counts from the end. Vector instructions gather words, with
// offsets in bytes; the scalar unit gathers 64-bit elements.
struct TakeCols {
  VectorUnit& unit;
  Rows2d out, in, index;

  __aicore__ inline bool is_one_row() const { return index.row_bytes == 0; }
  __aicore__ inline Piece of_index(const Piece& piece) const {
    const Piece all = rows_of(piece, index.cols);
    return is_one_row() ? Piece{0, 0, 1, all.num_cols, all.pitch} : all;
  }
  __aicore__ inline void load(const Bytes& loaded, const Piece& piece) {
    unit.load(loaded, 0, in, rows_of(piece, in.cols));
    unit.load(loaded, 1, index, of_index(piece));
  }
  __aicore__ inline void widen(const Bytes& loaded, const Piece& piece) {
    unit.widen_floats(unit.floats(0), loaded, 0, in.dtype, rows_of(piece, in.cols).count());
    unit.widen_floats(unit.floats(1), loaded, 1, index.dtype, of_index(piece).count());
  }
  __aicore__ inline void compute(const Piece& piece) {
    find_columns(of_index(piece));
    if (unit.has_refused()) return;
    const Piece from = rows_of(piece, in.cols), to = rows_of(piece, out.cols);
    const AscendC::LocalTensor<int32_t> places = unit.floats(1).ReinterpretCast<int32_t>();
    for (int32_t r = 0; r < piece.num_rows; ++r) {
      const AscendC::LocalTensor<int32_t> of_row = places[is_one_row() ? 0 : r * to.pitch];
      if (is_wide()) {
        for (int32_t k = 0; k < out.cols; ++k)
          taken().set_integer(r * to.pitch + k, given().integer(r * from.pitch + of_row.GetValue(k)));
      } else {
        AscendC::Gather(unit.floats(3)[r * to.pitch], unit.floats(0)[r * from.pitch], of_row.ReinterpretCast<uint32_t>(), 0,
                        out.cols);
      }
    }
    AscendC::PipeBarrier<PIPE_V>();
    if (is_wide()) unit.release_to_vectors();
    unit.write_floats(out, to, unit.floats(3), to.count());
  }

 private:
  __aicore__ inline bool is_wide() const { return most(element_bytes(in.dtype), element_bytes(out.dtype)) == 8; }
  __aicore__ inline Scalars given() const { return {unit.floats(0), in.dtype}; }
  __aicore__ inline Scalars taken() const { return {unit.floats(3), out.dtype}; }

  // Replaces the indices by positions in the row: byte offsets, or element numbers for 64-bit elements.
  __aicore__ inline void find_columns(const Piece& piece) {
    const AscendC::LocalTensor<int32_t> places = unit.floats(1).ReinterpretCast<int32_t>();
    const Floats cols = unit.floats(2), work = unit.floats(3), last = unit.floats(4);
    if (static_cast<Dtype>(index.dtype) == Dtype::INT64) {
      AscendC::Cast(cols.ReinterpretCast<int32_t>(), unit.floats(1).ReinterpretCast<int64_t>(),
                    AscendC::RoundMode::CAST_NONE, piece.count());
      AscendC::PipeBarrier<PIPE_V>();
      in_order::DataCopy(unit.floats(1), cols, piece.count());
    }
    count_columns(cols, work, places, in.cols, piece.count());
    check(cols, last, work, piece);
    if (unit.has_refused()) return;
    in_order::Muls(cols, cols, is_wide() ? 1.0f : 4.0f, piece.count());
    AscendC::Cast(places, cols, AscendC::RoundMode::CAST_RINT, piece.count());
    if (is_wide()) unit.wait_for_results();
    AscendC::PipeBarrier<PIPE_V>();
  }

  // Checks the least and the greatest column of all rows.
  __aicore__ inline void check(const Floats& cols, const Floats& ends, const Floats& work, const Piece& piece) {
    const int32_t half = kPieceFloats / 2;
    const Floats greatest = ends, least_negated = ends[half];
    AscendC::Duplicate(greatest, 0.0f, piece.pitch);
    AscendC::Duplicate(least_negated, 0.0f, piece.pitch);
    for (int32_t r = 0; r < piece.num_rows; ++r) {
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Max(greatest, greatest, cols[r * piece.pitch], piece.num_cols);
      AscendC::Muls(work, cols[r * piece.pitch], -1.0f, piece.num_cols);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Max(least_negated, least_negated, work, piece.num_cols);
    }
    AscendC::PipeBarrier<PIPE_V>();
    in_order::ReduceMax(work, greatest, work[half], piece.num_cols, false);
    AscendC::ReduceMax(work[kLane], least_negated, work[half], piece.num_cols, false);
    unit.wait_for_results();
    if (work.GetValue(0) >= static_cast<float>(in.cols) || work.GetValue(kLane) > 0.0f)
      unit.refuse(Code::INDEX_OUT_OF_RANGE);
  }
};

__aicore__ inline void take_cols(VectorUnit& unit, const Frame& frame) {
  TakeCols body{unit, frame.rows(0), frame.rows(1), frame.rows(2)};
  const int32_t bytes = most(most(element_bytes(body.out.dtype), element_bytes(body.in.dtype)),
                             element_bytes(body.index.dtype));
  run_whole_rows(unit, frame.unit.rows, most(body.in.cols, body.index.cols), bytes, body);
}

}  // namespace hpmoe

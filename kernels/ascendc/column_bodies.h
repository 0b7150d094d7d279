// Bodies that sum elements inside each row: at the columns that indices name, or cumulatively.
#pragma once

#include "scalars.h"

namespace hpmoe {

// Returns the same rows of an operand with other columns.
__aicore__ inline Piece rows_of(const Piece& piece, int32_t cols) {
  return {piece.row, 0, piece.num_rows, cols, round_up(cols, kLane)};
}

// Runs a body on whole rows; `cols` is the widest row, `bytes` the largest element. Halves are converted to float32.
// Refuses rows that are wider than a piece.
template <class Body>
__aicore__ inline void run_whole_rows(VectorUnit& unit, int32_t num_rows, int32_t cols, int32_t bytes, Body& body) {
  const int32_t elements = piece_elements(most(bytes, 4));
  if (cols > elements) return unit.refuse();
  run_pieces(unit, Pieces(num_rows, cols, elements), body);
}

// Computes out[t, e] = sum of in[t, k] over all k with index[t, k] == e, in the order of k; a negative index counts from
// the end.
struct AddCols {
  VectorUnit& unit;
  Rows2d out, in, index;
  bool is_number;
  float number;

  __aicore__ inline void load(const Bytes& loaded, const Piece& piece) {
    if (!is_number) unit.load(loaded, 0, in, rows_of(piece, index.cols));
    unit.load(loaded, 1, index, rows_of(piece, index.cols));
  }
  __aicore__ inline void widen(const Bytes& loaded, const Piece& piece) {
    const int32_t count = rows_of(piece, index.cols).count();
    if (!is_number) unit.widen_floats(unit.floats(0), loaded, 0, in.dtype, count);
    unit.widen_floats(unit.floats(1), loaded, 1, index.dtype, count);
    AscendC::Duplicate(unit.floats(2), 0.0f, rows_of(piece, out.cols).count() * most(element_bytes(out.dtype), 4) / 4);
  }
  __aicore__ inline void compute(const Piece& piece) {
    const Piece from = rows_of(piece, index.cols), to = rows_of(piece, out.cols);
    unit.wait_for_results();
    for (int32_t r = 0; r < piece.num_rows && !unit.has_refused(); ++r) {
      for (int32_t k = 0; k < index.cols && !unit.has_refused(); ++k) add(r * from.pitch + k, r * to.pitch);
    }
    write_scalars(unit, out, to, sums(), to.count());
  }

 private:
  __aicore__ inline Scalars sums() const { return {unit.floats(2), out.dtype}; }
  __aicore__ inline void add(int32_t i, int32_t row) {
    const Scalars added{unit.floats(0), in.dtype}, at{unit.floats(1), index.dtype};
    int64_t col = at.integer(i);
    if (col < 0) col += out.cols;
    if (col < 0 || col >= out.cols) return unit.refuse(Code::INDEX_OUT_OF_RANGE);
    const auto place = row + static_cast<int32_t>(col);
    if (!is_integer(out.dtype))
      return sums().set_number(place, sums().number(place) + (is_number ? number : added.number(i)));
    const int64_t more = is_number ? truncated(number) : added.integer(i);
    sums().set_integer(place, wrapped(static_cast<uint64_t>(sums().integer(place)) + static_cast<uint64_t>(more)));
  }
};

__aicore__ inline void add_cols(VectorUnit& unit, const Frame& frame) {
  const Operand& added = frame.op.operands[1];
  const Rows2d out = frame.rows(0), index = frame.rows(2), in = added.buffer < 0 ? Rows2d{} : frame.rows(1);
  AddCols body{unit, out, in, index, added.buffer < 0, added.value};
  const int32_t bytes = most(most(element_bytes(out.dtype), element_bytes(index.dtype)), element_bytes(in.dtype));
  run_whole_rows(unit, frame.unit.rows, most(out.cols, index.cols), bytes, body);
}

// Computes out[t, i] = sum of x[t, j] over j <= i, or over j >= i.
struct CumSum : OfOneOperand {
  bool is_reverse;

  __aicore__ inline void compute(const Piece& piece) {
    const Scalars x{unit.floats(0), in.dtype}, sums{unit.floats(1), out.dtype};
    unit.wait_for_results();
    for (int32_t r = 0; r < piece.num_rows; ++r) {
      float number = 0.0f;
      int64_t integer = 0;
      for (int32_t i = 0; i < piece.num_cols; ++i) {
        const int32_t place = r * piece.pitch + (is_reverse ? piece.num_cols - 1 - i : i);
        if (is_integer(in.dtype)) {
          integer = wrapped(static_cast<uint64_t>(integer) + static_cast<uint64_t>(x.integer(place)));
          sums.set_integer(place, integer);
        } else {
          number = i == 0 ? x.number(place) : number + x.number(place);
          sums.set_number(place, number);
        }
      }
    }
    write_scalars(unit, out, piece, sums, piece.count());
  }
};

__aicore__ inline void cumsum(VectorUnit& unit, const Frame& frame) {
  CumSum body{{unit, frame.rows(0), frame.rows(1)}, params::Running::of(frame.op).reverse};
  const int32_t bytes = most(element_bytes(body.out.dtype), element_bytes(body.in.dtype));
  run_whole_rows(unit, frame.unit.rows, body.in.cols, bytes, body);
}

}  // namespace hpmoe

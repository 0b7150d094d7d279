// Elementwise bodies, sums and maxima of integers, and remainders of floats, on the scalar unit.
#pragma once

#include "entry_pieces.h"
#include "map_body.h"
#include "scalars.h"
#include "transfer_body.h"

namespace hpmoe {

__aicore__ inline bool has_integers(const Frame& frame) {
  for (int32_t i = 0; i < frame.op.num_operands; ++i)
    if (frame.op.operands[i].buffer >= 0 && is_integer(frame.buffer(i).dtype)) return true;
  return false;
}
__aicore__ inline bool is_by_scalars(MapCode code) { return code == MapCode::FLOOR_DIV || code == MapCode::REMAINDER; }

// Computes out = code(a, b, c) for integers, or for floats if the vector unit has no such function.
struct ScalarMap {
  Map map;
  bool of_integers;

  __aicore__ inline void load(const Bytes& in, const Piece& piece) { map.load(in, piece); }
  __aicore__ inline void widen(const Bytes& in, const Piece& piece) {
    for (int32_t i = 0; i < map.num_inputs; ++i) {
      const int32_t rows = map.is_row(i) ? 1 : piece.num_rows, pitch = pitch_of(i, piece);
      if (!map.is_number[i]) map.unit.widen_floats(map.unit.floats(i), in, i, map.inputs[i].dtype, rows * pitch);
    }
  }
  __aicore__ inline void compute(const Piece& piece) {
    const Scalars out{map.unit.floats(kMaxInputs), map.out.dtype};
    map.unit.wait_for_results();
    for (int32_t r = 0; r < piece.num_rows; ++r) {
      for (int32_t c = 0; c < piece.num_cols; ++c) {
        if (!(of_integers ? set_integer(out, piece, r, c) : set_number(out, piece, r, c))) return map.unit.refuse();
      }
    }
    write_scalars(map.unit, map.out, piece, out, piece.count());
  }

 private:
  __aicore__ inline int32_t pitch_of(int32_t i, const Piece& piece) const {
    return map.inputs[i].is_column ? kLane : piece.pitch;
  }
  __aicore__ inline Scalars input(int32_t i) const { return {map.unit.floats(i), map.inputs[i].dtype}; }
  __aicore__ inline int32_t place(int32_t i, const Piece& piece, int32_t r, int32_t c) const {
    return (map.is_row(i) ? 0 : r * pitch_of(i, piece)) + (map.inputs[i].is_column ? 0 : c);
  }
  __aicore__ inline int64_t integer(int32_t i, const Piece& piece, int32_t r, int32_t c) const {
    if (i >= map.num_inputs) return 0;
    return map.is_number[i] ? truncated(map.number[i]) : input(i).integer(place(i, piece, r, c));
  }
  __aicore__ inline float number(int32_t i, const Piece& piece, int32_t r, int32_t c) const {
    return map.is_number[i] ? map.number[i] : input(i).number(place(i, piece, r, c));
  }
  __aicore__ inline bool set_integer(const Scalars& out, const Piece& piece, int32_t r, int32_t c) const {
    int64_t value = 0;
    if (!apply(map.code, integer(0, piece, r, c), integer(1, piece, r, c), integer(2, piece, r, c), value)) return false;
    const bool truncates = map.code == MapCode::COPY && !map.is_number[0] && !is_integer(map.inputs[0].dtype) &&
                           static_cast<Dtype>(out.dtype) == Dtype::INT32;
    if (truncates && value != static_cast<int32_t>(value)) value = kLeastInt32;
    out.set_integer(r * piece.pitch + c, value);
    return true;
  }
  __aicore__ inline bool set_number(const Scalars& out, const Piece& piece, int32_t r, int32_t c) const {
    if (map.num_inputs != 2) return false;
    const float a = number(0, piece, r, c), b = number(1, piece, r, c);
    out.set_number(r * piece.pitch + c, map.code == MapCode::FLOOR_DIV ? float_floor_div(a, b) : float_remainder(a, b));
    return true;
  }
};

__aicore__ inline bool only_moves(const Map& map) {
  const bool is_whole = !map.is_number[0] && !map.inputs[0].is_column && !map.is_row(0);
  return map.code == MapCode::COPY && is_whole && map.inputs[0].dtype == map.out.dtype;
}
__aicore__ inline void move_rows(VectorUnit& unit, const Map& map, int32_t num_rows, int32_t num_cols) {
  pass_rows(unit, {}, num_rows, num_cols * element_bytes(map.out.dtype),
            {map.inputs[0].address, map.inputs[0].row_bytes, false, 1, 0},
            {map.out.address, map.out.row_bytes, false, 1, 0});
}

__aicore__ inline void map(VectorUnit& unit, const Frame& frame) {
  if (frame.op.num_operands < 2 || frame.op.num_operands > 1 + kMaxInputs) return unit.refuse();
  Map body = map_of(unit, frame);
  const Pieces pieces(frame.unit.rows, frame.task.cols, piece_elements(body.widest()));
  const bool of_integers = has_integers(frame);
  if (of_integers && only_moves(body)) return move_rows(unit, body, frame.unit.rows, frame.task.cols);
  if (!of_integers && !is_by_scalars(body.code)) return run_pieces(unit, pieces, body);
  ScalarMap by_scalars{body, of_integers};
  run_pieces(unit, pieces, by_scalars);
}

using Integers = AscendC::LocalTensor<int64_t>;

__aicore__ inline Integers sums_of(VectorUnit& unit) { return unit.floats(kMaxInputs).ReinterpretCast<int64_t>(); }

// Adds a value to a sum, which wraps around, or takes the maximum; the first value replaces the sum.
__aicore__ inline void take(const Integers& sums, int32_t i, int64_t value, bool is_max, bool is_first) {
  const int64_t so_far = is_first ? value : sums.GetValue(i);
  const bool is_other = is_first || (is_max && so_far > value);
  const uint64_t sum = static_cast<uint64_t>(so_far) + static_cast<uint64_t>(value);
  sums.SetValue(i, is_other ? so_far : is_max ? value : wrapped(sum));
}

// Computes out[r] = the sum of row a[r], or its maximum.
struct FoldIntegers : OfOneOperand {
  bool is_max;

  __aicore__ inline void compute(const Piece& piece) {
    const Scalars x{unit.floats(0), in.dtype}, to{unit.floats(kMaxInputs + 1), out.dtype};
    const Integers sums = sums_of(unit);
    unit.wait_for_results();
    for (int32_t r = 0; r < piece.num_rows; ++r) {
      for (int32_t c = 0; c < piece.num_cols; ++c)
        take(sums, r, x.integer(r * piece.pitch + c), is_max, piece.col == 0 && c == 0);
      to.set_integer(r * kLane, sums.GetValue(r));
    }
    if (piece.col + piece.num_cols == in.cols) write_scalars(unit, out, piece, to, piece.num_rows * kLane);
  }
};

// Computes out[t] = the sum of in[t * K + k] over k, or the maximum.
struct ReduceIntegers : OfOneOperand {
  int32_t top_k;
  bool is_max;

  __aicore__ inline void load(const Bytes& loaded, const EntryPiece& piece) { OfOneOperand::load(loaded, piece.of(top_k)); }
  __aicore__ inline void widen(const Bytes& loaded, const EntryPiece& piece) {
    OfOneOperand::widen(loaded, piece.of(top_k));
  }
  __aicore__ inline void compute(const EntryPiece& piece) {
    const Scalars x{unit.floats(0), in.dtype}, to{unit.floats(kMaxInputs + 1), out.dtype};
    const Integers sums = sums_of(unit);
    const int32_t pitch = piece.tokens.pitch;
    unit.wait_for_results();
    for (int32_t t = 0; t < piece.tokens.num_rows; ++t) {
      for (int32_t c = 0; c < piece.tokens.num_cols; ++c) {
        for (int32_t k = 0; k < piece.entries; ++k)
          take(sums, t * pitch + c, x.integer((t * piece.entries + k) * pitch + c), is_max, piece.first == 0 && k == 0);
        to.set_integer(t * pitch + c, sums.GetValue(t * pitch + c));
      }
    }
    if (piece.is_last) write_scalars(unit, out, piece.tokens, to, piece.tokens.count());
  }
};

}  // namespace hpmoe

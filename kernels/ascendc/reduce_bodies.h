// Sums over a token's entries, along rows and down columns.
#pragma once

#include "drop_bodies.h"
#include "integer_bodies.h"

namespace hpmoe {

// Computes out[t] = sum_k w[t, k] * in[t * K + k], k = 0, 1, ..., over the kept entries, or their maximum. `chosen` has a
// negative number for a dropped entry; it is 0 if all entries are kept.
struct ReduceEntries {
  VectorUnit& unit;
  Rows2d out, in, weights;
  uint64_t chosen;
  int32_t top_k;
  bool is_weighted, is_max;

  __aicore__ inline static int32_t lanes(const EntryPiece& p) { return round_up(p.entries, kLane); }
  __aicore__ inline static Piece of_weights(const EntryPiece& p) {
    return {p.tokens.row, p.first, p.tokens.num_rows, p.entries, lanes(p)};
  }

  __aicore__ inline void load(const Bytes& loaded, const EntryPiece& piece) {
    unit.load(loaded, 0, in, piece.of(top_k));
    if (is_weighted) unit.load(loaded, 1, weights, of_weights(piece));
  }
  __aicore__ inline void widen(const Bytes& loaded, const EntryPiece& piece) {
    begin(loaded, piece);
    unit.widen(unit.floats(1), loaded, 0, in.dtype, piece.of(top_k).count());
  }
  __aicore__ inline void begin(const Bytes& loaded, const EntryPiece& piece) {
    if (piece.first == 0) AscendC::Duplicate(unit.floats(0), is_max ? -__builtin_inff() : 0.0f, piece.tokens.count());
    if (is_weighted) unit.widen(unit.floats(2), loaded, 1, weights.dtype, of_weights(piece).count());
  }
  __aicore__ inline void compute(const EntryPiece& piece) {
    const Floats sum = unit.floats(0), x = unit.floats(1), w = unit.floats(2);
    const Piece all = piece.of(top_k);
    const int32_t pitch = all.pitch;
    AscendC::LocalTensor<int32_t> kept;
    if (chosen != 0) kept = unit.read_entries(chosen + static_cast<uint64_t>(all.row) * sizeof(int32_t), all.num_rows);
    if (is_weighted) unit.wait_for_results();
    for (int32_t k = 0; k < piece.entries; ++k) {
      for (int32_t r = 0; r < piece.tokens.num_rows; ++r) {
        if (chosen != 0 && kept.GetValue(r * piece.entries + k) < 0) continue;
        const Floats so_far = sum[r * pitch], next = x[(r * piece.entries + k) * pitch];
        if (is_max) {
          AscendC::Max(so_far, so_far, next, pitch);
        } else {
          AscendC::Axpy(so_far, next, is_weighted ? w.GetValue(r * lanes(piece) + k) : 1.0f, pitch);
        }
      }
      AscendC::PipeBarrier<PIPE_V>();
    }
    if (piece.is_last) unit.write(out, piece.tokens, sum, piece.tokens.count());
  }
};

// Makes ReduceEntries for these operand numbers; `of_weights` one past the last operand means no weights.
__aicore__ inline ReduceEntries entry_sums(VectorUnit& unit, const Frame& frame, int32_t entries, int32_t of_weights) {
  const int32_t top_k = frame.routing.route().top_k;
  const bool is_weighted = frame.op.num_operands > of_weights;
  const Buffer from = frame.buffer(entries);
  const Rows2d out = frame.rows(0), weights = is_weighted ? frame.rows(of_weights) : Rows2d{};
  const int64_t first = static_cast<int64_t>(frame.unit.start) * top_k;
  const Rows2d in{frame.element(entries, from, first, frame.first_col(entries)),
                  static_cast<int64_t>(from.cols) * element_bytes(from.dtype), from.dtype, out.cols, false};
  const uint64_t chosen = frame.routing.keeps_all() ? 0 : chosen_from(frame, frame.unit.start);
  return {unit, out, in, weights, chosen, top_k, is_weighted, false};
}

__aicore__ inline void reduce_entries(VectorUnit& unit, const Frame& frame, int32_t entries, int32_t of_weights) {
  ReduceEntries body = entry_sums(unit, frame, entries, of_weights);
  const int32_t bytes = most(element_bytes(body.out.dtype), element_bytes(body.in.dtype));
  const int32_t elements = piece_elements(most(bytes, element_bytes(body.weights.dtype)));
  run_pieces(unit, EntryPieces(frame.unit.rows, body.out.cols, body.top_k, elements), body);
}

__aicore__ inline void reduce(VectorUnit& unit, const Frame& frame) { reduce_entries(unit, frame, 1, 2); }

// Computes out[r] = <a[r], b[r]>, the sum of a[r], or its maximum: first over the parts of a row, element by element,
// then over the elements of the result.
struct FoldRows : OfFloats {
  Rows2d out;
  bool is_max;

  __aicore__ inline void widen(const Bytes& loaded, const Piece& piece) {
    OfFloats::widen(loaded, piece);
    if (piece.col == 0) AscendC::Duplicate(unit.floats(2), is_max ? -__builtin_inff() : 0.0f, piece.count());
  }
  __aicore__ inline void compute(const Piece& piece) {
    const Floats x = unit.floats(0), parts = unit.floats(2), folded = unit.floats(3);
    if (num_inputs > 1) {
      in_order::Mul(x, x, unit.floats(1), piece.count());
    }
    for (int32_t r = 0; r < piece.num_rows; ++r) {  // without padding
      const Floats part = parts[r * piece.pitch];
      if (is_max) {
        AscendC::Max(part, part, x[r * piece.pitch], piece.num_cols);
      } else {
        AscendC::Add(part, part, x[r * piece.pitch], piece.num_cols);
      }
    }
    AscendC::PipeBarrier<PIPE_V>();
    if (piece.col + piece.num_cols < in[0].cols) return;
    for (int32_t r = 0; r < piece.num_rows; ++r) {
      if (is_max) {
        AscendC::ReduceMax(folded[r * kLane], parts[r * piece.pitch], x, piece.pitch, false);
      } else {
        AscendC::ReduceSum(folded[r * kLane], parts[r * piece.pitch], x, piece.pitch);
      }
      AscendC::PipeBarrier<PIPE_V>();
    }
    unit.write(out, piece, folded, piece.num_rows * kLane);
  }
};

__aicore__ inline int32_t widest_of(const Rows2d& a, const Rows2d& b) {
  return most(element_bytes(a.dtype), element_bytes(b.dtype));
}

__aicore__ inline void fold(VectorUnit& unit, Rows2d out, const Rows2d& a, int32_t num_rows, bool is_max) {
  out.is_column = true;
  const Pieces pieces(num_rows, a.cols, piece_elements(widest_of(a, out)));
  if (is_integer(a.dtype) || is_integer(out.dtype)) {
    FoldIntegers body{{unit, out, a}, is_max};
    return run_pieces(unit, pieces, body);
  }
  FoldRows body{{unit, 1, {a}}, out, is_max};
  run_pieces(unit, pieces, body);
}

__aicore__ inline bool is_reduction(Reduction code) { return code == Reduction::SUM || code == Reduction::MAX; }

__aicore__ inline void row_reduce(VectorUnit& unit, const Frame& frame) {
  const Reduction reduction = params::ByColumns::of(frame.op).reduction;
  if (!is_reduction(reduction)) return unit.refuse();
  fold(unit, frame.rows(0), frame.rows(1), frame.unit.rows, reduction == Reduction::MAX);
}

__aicore__ inline void row_dot(VectorUnit& unit, const Frame& frame) {
  FoldRows body{{unit, 2, {frame.rows(1), frame.rows(2)}}, frame.rows(0), false};
  body.out.is_column = true;
  run_pieces(unit, Pieces(frame.unit.rows, body.in[0].cols, piece_elements(body.widest(0))), body);
}

// Computes out[e] = sum of the expert's rows, in order.
struct SumColumns {
  VectorUnit& unit;
  Rows2d out, in;
  int32_t num_rows;

  __aicore__ inline void load(const Bytes& loaded, const Piece& piece) { unit.load(loaded, 0, in, piece); }
  __aicore__ inline void widen(const Bytes& loaded, const Piece& piece) {
    if (piece.row == 0) AscendC::Duplicate(unit.floats(0), 0.0f, piece.pitch);
    unit.widen(unit.floats(1), loaded, 0, in.dtype, piece.count());
  }
  __aicore__ inline void compute(const Piece& piece) {
    const Floats sum = unit.floats(0), x = unit.floats(1);
    for (int32_t r = 0; r < piece.num_rows; ++r) {
      in_order::Add(sum, sum, x[r * piece.pitch], piece.pitch);
    }
    if (piece.row + piece.num_rows == num_rows) unit.write(out, {0, 0, 1, piece.num_cols, piece.pitch}, sum, piece.pitch);
  }
};

__aicore__ inline void col_sum(VectorUnit& unit, const Frame& frame) {
  const Buffer to = frame.buffer(0);
  const Rows2d in = frame.rows(1);
  Rows2d out = frame.rows(0);
  out.address = frame.element(0, to, frame.unit.expert, frame.first_col(0));
  const int32_t size_out = element_bytes(out.dtype), size_in = element_bytes(in.dtype);
  const int32_t elements = piece_elements(most(size_out, size_in));
  if (frame.unit.rows == 0) return clear_rows(unit, out.address, 0, 1, frame.task.cols * size_out);
  if (is_integer(out.dtype) || is_integer(in.dtype)) {
    ReduceIntegers sums{{unit, out, in}, frame.unit.rows, false};  // the rows are like the entries of one token
    return run_pieces(unit, EntryPieces(1, frame.task.cols, frame.unit.rows, elements), sums);
  }
  for (int32_t col = 0; col < frame.task.cols; col += elements) {
    SumColumns body{unit, out, in, frame.unit.rows};
    body.out.address += col * size_out;
    body.in.address += col * size_in;
    run_pieces(unit, Pieces(frame.unit.rows, least(elements, frame.task.cols - col), elements), body);
  }
}

}  // namespace hpmoe

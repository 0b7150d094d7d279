// RMS norm of rows, and its gradient. Each row is read twice: for its sums, and to be scaled.
#pragma once

#include "reduce_bodies.h"

namespace hpmoe {

// Computes scale = 1 / sqrt(mean(x^2) + eps) and factor = scale^2 mean(g x) of one row of x and, as second input, g;
// factor is 0 without g.
struct RowScale : OfFloats {
  __aicore__ inline void widen(const Bytes& in, const Piece& piece) {
    OfFloats::widen(in, piece);
    if (piece.col > 0) return;
    AscendC::Duplicate(unit.floats(2), 0.0f, piece.pitch);
    AscendC::Duplicate(unit.floats(3), 0.0f, piece.pitch);
  }
  __aicore__ inline void compute(const Piece& piece) {
    const Floats a = unit.floats(0), b = unit.floats(1), squares = unit.floats(2), products = unit.floats(3);
    if (num_inputs > 1) AscendC::Mul(b, b, a, piece.num_cols);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Mul(a, a, a, piece.num_cols);
    if (num_inputs > 1) AscendC::Add(products, products, b, piece.num_cols);
    AscendC::PipeBarrier<PIPE_V>();
    in_order::Add(squares, squares, a, piece.num_cols);
  }
  __aicore__ inline void finish(int32_t pitch, float eps, float& scale, float& factor) {
    const Floats sum = unit.floats(4), ones = sum[kLane], product = sum[2 * kLane];
    const float per_column = 1.0f / static_cast<float>(in[0].cols);
    AscendC::ReduceSum(sum, unit.floats(2), unit.floats(0), pitch);
    AscendC::Duplicate(ones, 1.0f, kLane);
    AscendC::PipeBarrier<PIPE_V>();
    in_order::Muls(sum, sum, per_column, 1);
    in_order::Adds(sum, sum, eps, 1);
    in_order::Sqrt(sum, sum, 1);
    AscendC::Div(sum, ones, sum, 1);
    AscendC::ReduceSum(product, unit.floats(3), unit.floats(0), pitch);
    AscendC::PipeBarrier<PIPE_V>();
    unit.wait_for_results();
    scale = sum.GetValue(0);
    factor = scale * scale * product.GetValue(0) * per_column;
  }
};

// out = scale * (g - factor * x), or scale * x without g.
struct ScaledRow : OfFloats {
  Rows2d out;
  float scale, factor;

  __aicore__ inline void compute(const Piece& piece) {
    const Floats a = unit.floats(0);
    if (num_inputs > 1) {
      in_order::Muls(a, a, factor, piece.count());
      in_order::Sub(a, unit.floats(1), a, piece.count());
    }
    in_order::Muls(a, a, scale, piece.count());
    unit.write(out, piece, a, piece.count());
  }
};

// Processes one row after another, since the sums of a row decide its scale.
__aicore__ inline void normalise(VectorUnit& unit, const Frame& frame, OfFloats rows, float eps) {
  Rows2d out = frame.rows(0);
  const int32_t elements = piece_elements(rows.widest(element_bytes(out.dtype))), cols = rows.in[0].cols;
  for (int32_t row = 0; row < frame.unit.rows; ++row) {
    RowScale sums{rows};
    run_pieces(unit, Pieces(1, cols, elements), sums);
    ScaledRow body{rows, out, 0.0f, 0.0f};
    sums.finish(round_up(least(cols, elements / kLane * kLane), kLane), eps, body.scale, body.factor);
    run_pieces(unit, Pieces(1, cols, elements), body);
    for (int32_t i = 0; i < rows.num_inputs; ++i) rows.in[i].address += rows.in[i].row_bytes;
    out.address += out.row_bytes;
  }
}

__aicore__ inline void rms_norm(VectorUnit& unit, const Frame& frame) {
  normalise(unit, frame, {unit, 1, {frame.rows(1)}}, frame.op.operands[2].value);
}

__aicore__ inline void rms_norm_grad(VectorUnit& unit, const Frame& frame) {
  normalise(unit, frame, {unit, 2, {frame.rows(2), frame.rows(1)}}, frame.op.operands[3].value);
}

}  // namespace hpmoe

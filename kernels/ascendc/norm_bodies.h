// RMS norm of rows, and its gradient. Each row is read twice: for its sums, and to be scaled.
#pragma once

#include "reduce_bodies.h"

namespace hpmoe {

// Loads rows of x into floats(0), and rows of g into floats(1).
struct RowPair {
  VectorUnit& unit;
  Rows2d x, g;
  bool has_g;

  __aicore__ inline void load(const Bytes& in, const Piece& piece) {
    unit.load(in, 0, x, piece);
    if (has_g) unit.load(in, 1, g, piece);
  }
  __aicore__ inline void widen(const Bytes& in, const Piece& piece) {
    unit.widen(unit.floats(0), in, 0, x.dtype, piece.count());
    if (has_g) unit.widen(unit.floats(1), in, 1, g.dtype, piece.count());
  }
};

// Computes scale = 1 / sqrt(mean(x^2) + eps) and factor = scale^2 mean(g x) of one row; factor is 0 without g.
struct RowScale : RowPair {
  __aicore__ inline void widen(const Bytes& in, const Piece& piece) {
    RowPair::widen(in, piece);
    if (piece.col > 0) return;
    AscendC::Duplicate(unit.floats(2), 0.0f, piece.pitch);
    AscendC::Duplicate(unit.floats(3), 0.0f, piece.pitch);
  }
  __aicore__ inline void compute(const Piece& piece) {
    const Floats a = unit.floats(0), b = unit.floats(1), squares = unit.floats(2), products = unit.floats(3);
    if (has_g) AscendC::Mul(b, b, a, piece.num_cols);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Mul(a, a, a, piece.num_cols);
    if (has_g) AscendC::Add(products, products, b, piece.num_cols);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Add(squares, squares, a, piece.num_cols);
    AscendC::PipeBarrier<PIPE_V>();
  }
  __aicore__ inline void finish(int32_t pitch, float eps, float& scale, float& factor) {
    const Floats sum = unit.floats(4), ones = sum[kLane], product = sum[2 * kLane];
    const float per_column = 1.0f / static_cast<float>(x.cols);
    AscendC::ReduceSum(sum, unit.floats(2), unit.floats(0), pitch);
    AscendC::Duplicate(ones, 1.0f, kLane);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Muls(sum, sum, per_column, 1);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Adds(sum, sum, eps, 1);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Sqrt(sum, sum, 1);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Div(sum, ones, sum, 1);
    AscendC::ReduceSum(product, unit.floats(3), unit.floats(0), pitch);
    AscendC::PipeBarrier<PIPE_V>();
    unit.wait_for_results();
    scale = sum.GetValue(0);
    factor = scale * scale * product.GetValue(0) * per_column;
  }
};

// out = scale * (g - factor * x), or scale * x without g.
struct ScaledRow : RowPair {
  Rows2d out;
  float scale, factor;

  __aicore__ inline void compute(const Piece& piece) {
    const Floats a = unit.floats(0);
    if (has_g) {
      AscendC::Muls(a, a, factor, piece.count());
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Sub(a, unit.floats(1), a, piece.count());
      AscendC::PipeBarrier<PIPE_V>();
    }
    AscendC::Muls(a, a, scale, piece.count());
    AscendC::PipeBarrier<PIPE_V>();
    unit.write(out, piece, a, piece.count());
  }
};

// Processes one row after another, since the sums of a row decide its scale.
__aicore__ inline void normalise(VectorUnit& unit, const Frame& frame, Rows2d x, Rows2d g, bool has_g, float eps) {
  Rows2d out = frame.rows(0);
  const int32_t elements = piece_elements(most(widest_of(out, x), has_g ? element_bytes(g.dtype) : 0));
  for (int32_t row = 0; row < frame.unit.rows; ++row) {
    const RowPair rows{unit, x, g, has_g};
    RowScale sums{rows};
    run_pieces(unit, Pieces(1, x.cols, elements), sums);
    ScaledRow body{rows, out, 0.0f, 0.0f};
    sums.finish(round_up(least(x.cols, elements / kLane * kLane), kLane), eps, body.scale, body.factor);
    run_pieces(unit, Pieces(1, x.cols, elements), body);
    x.address += x.row_bytes;
    g.address += g.row_bytes;
    out.address += out.row_bytes;
  }
}

__aicore__ inline void rms_norm(VectorUnit& unit, const Frame& frame) {
  normalise(unit, frame, frame.rows(1), Rows2d{}, false, frame.op.operands[2].value);
}

__aicore__ inline void rms_norm_grad(VectorUnit& unit, const Frame& frame) {
  normalise(unit, frame, frame.rows(2), frame.rows(1), true, frame.op.operands[3].value);
}

}  // namespace hpmoe

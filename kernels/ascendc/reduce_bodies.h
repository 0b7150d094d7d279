// The weighted sum of a token's entries, and dot products of rows.
#pragma once

#include "vector_unit.h"

namespace hpmoe {

// out[t] = sum_k w[t, k] * in[t * K + k], k = 0, 1, ...
__aicore__ inline void reduce_entries(VectorUnit& unit, const Frame& frame) {
  const int32_t top_k = frame.routing.route().top_k, lanes = round_up(top_k, kLane);
  const bool is_weighted = frame.op.num_operands > 2;
  const Buffer in_buffer = frame.buffer(1);
  const Rows2d out = frame.rows(0), weights = is_weighted ? frame.rows(2) : Rows2d{};
  const Rows2d in{frame.element(1, in_buffer, static_cast<int64_t>(frame.unit.start) * top_k, frame.first_col(1)),
                  static_cast<int64_t>(in_buffer.cols) * element_bytes(in_buffer.dtype), in_buffer.dtype, out.cols, false};
  const int32_t widest = most(most(element_bytes(out.dtype), element_bytes(in.dtype)), element_bytes(weights.dtype));
  for (Pieces pieces(frame.unit.rows, out.cols, piece_elements(widest) / top_k); !pieces.is_done();) {
    const Piece piece = pieces.next();
    const Piece entries{piece.row * top_k, piece.col, piece.num_rows * top_k, piece.num_cols, piece.pitch};
    const Piece of_weights{piece.row, 0, piece.num_rows, top_k, lanes};
    Bytes loaded = unit.inputs.AllocTensor<uint8_t>();
    unit.load(loaded, 0, in, entries);
    if (is_weighted) unit.load(loaded, 1, weights, of_weights);
    unit.inputs.EnQue(loaded);
    loaded = unit.inputs.DeQue<uint8_t>();
    const Floats sum = unit.floats(0), x = unit.floats(1), w = unit.floats(2);
    unit.widen(x, loaded, 0, in.dtype, entries.count());
    if (is_weighted) unit.widen(w, loaded, 1, weights.dtype, of_weights.count());
    AscendC::Duplicate(sum, 0.0f, piece.count());
    unit.inputs.FreeTensor(loaded);
    AscendC::PipeBarrier<PIPE_V>();
    if (is_weighted) unit.wait_for_results();
    for (int32_t k = 0; k < top_k; ++k) {
      for (int32_t r = 0; r < piece.num_rows; ++r) {
        const float weight = is_weighted ? w.GetValue(r * lanes + k) : 1.0f;
        AscendC::Axpy(sum[r * piece.pitch], x[(r * top_k + k) * piece.pitch], weight, piece.pitch);
      }
      AscendC::PipeBarrier<PIPE_V>();
    }
    unit.write(out, piece, sum, piece.count());
  }
}

// out[r] = <a[r], b[r]>: products of the parts of a row are added up, then summed.
__aicore__ inline void row_dot(VectorUnit& unit, const Frame& frame) {
  const Rows2d a = frame.rows(1), b = frame.rows(2);
  Rows2d out = frame.rows(0);
  out.is_column = true;
  const int32_t widest = most(element_bytes(a.dtype), element_bytes(b.dtype)), elements = piece_elements(widest);
  const Floats x = unit.floats(0), y = unit.floats(1), products = unit.floats(2), dots = unit.floats(3);
  Pieces pieces(frame.unit.rows, a.cols, elements);
  while (!pieces.is_done()) {
    Piece piece{};
    do {
      piece = pieces.next();
      Bytes in = unit.inputs.AllocTensor<uint8_t>();
      unit.load(in, 0, a, piece);
      unit.load(in, 1, b, piece);
      unit.inputs.EnQue(in);
      in = unit.inputs.DeQue<uint8_t>();
      unit.widen(x, in, 0, a.dtype, piece.count());
      unit.widen(y, in, 1, b.dtype, piece.count());
      if (piece.col == 0) AscendC::Duplicate(products, 0.0f, piece.count());
      unit.inputs.FreeTensor(in);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Mul(x, x, y, piece.count());
      AscendC::PipeBarrier<PIPE_V>();
      for (int32_t r = 0; r < piece.num_rows; ++r)  // without what fills a row up
        AscendC::Add(products[r * piece.pitch], products[r * piece.pitch], x[r * piece.pitch], piece.num_cols);
      AscendC::PipeBarrier<PIPE_V>();
    } while (piece.col + piece.num_cols < a.cols);
    for (int32_t r = 0; r < piece.num_rows; ++r) {
      AscendC::ReduceSum(dots[r * kLane], products[r * piece.pitch], x, piece.pitch);
      AscendC::PipeBarrier<PIPE_V>();
    }
    unit.write(out, piece, dots, piece.num_rows * kLane);
  }
}

}  // namespace hpmoe

// Sums quantised rows that came back to tokens.
#pragma once

#include "quantized_bodies.h"
#include "reduce_bodies.h"

namespace hpmoe {

// Computes out[t] = sum_k w[t, k] * float32(in[t * K + k]) * scale, k = 0, 1, ..., like ReduceEntries for rows of floats.
struct ReduceQuantized {
  ReduceEntries sums;
  RowFormat format;
  Rows2d scales;

  // Returns a piece whose rows of bytes begin at whole blocks of UB.
  __aicore__ inline static Piece in_blocks(const Piece& p) {
    return {p.row, p.col, p.num_rows, p.num_cols, round_up(p.pitch, kBlockBytes)};
  }

  __aicore__ inline void load(const Bytes& loaded, const EntryPiece& piece) {
    const Piece all = piece.of(sums.top_k);
    sums.unit.load(loaded, 0, sums.in, in_blocks(all));
    if (sums.is_weighted) sums.unit.load(loaded, 1, sums.weights, sums.of_weights(piece));
    sums.unit.load(loaded, 2, scales, has_blocks() ? scales_of_piece(all) : all);
  }
  __aicore__ inline bool has_blocks() const { return format.block > 0; }
  __aicore__ inline void widen(const Bytes& loaded, const EntryPiece& piece) {
    VectorUnit& unit = sums.unit;
    const Piece all = piece.of(sums.top_k), bytes = in_blocks(all);
    if (!has_blocks()) unit.widen(unit.floats(3), loaded, 2, scales.dtype, all.num_rows * kLane);
    sums.begin(loaded, piece);
    const int32_t at_once = bytes.pitch == all.pitch ? all.num_rows : 1;
    for (int32_t r = 0; r < all.num_rows; r += at_once)
      widen_elements(format.element, unit.floats(1)[r * all.pitch], loaded[r * bytes.pitch], unit.floats(4)[r * all.pitch],
                     at_once * all.pitch);
    if (has_blocks()) spread_scales(unit, loaded, 2, all);
  }
  __aicore__ inline void compute(const EntryPiece& piece) {
    const Piece all = piece.of(sums.top_k);
    const Floats x = sums.unit.floats(1), of_rows = sums.unit.floats(3);
    if (has_blocks()) {
      AscendC::Mul(x, x, sums.unit.floats(4)[kMostScaled], all.count());
    } else {
      sums.unit.wait_for_results();
      for (int32_t r = 0; r < all.num_rows; ++r)
        AscendC::Muls(x[r * all.pitch], x[r * all.pitch], of_rows.GetValue(r * kLane), all.pitch);
    }
    AscendC::PipeBarrier<PIPE_V>();
    sums.compute(piece);
  }
};

__aicore__ inline void reduce_quantized(VectorUnit& unit, const Frame& frame) {
  const ReduceEntries sums = entry_sums(unit, frame, 1, 2);
  ReduceQuantized body{sums, RowFormat::of(frame.op), {}};
  body.sums.in.cols = frame.buffer(1).cols;
  if (!is_packed(body.format, body.sums.in, sums.out)) return unit.refuse();
  body.scales = body.has_blocks() ? block_scales_in(sums.in, sums.out.cols, sums.out.cols)
                                  : scales_of(sums.in, sums.out.cols);
  run_pieces(unit, EntryPieces(frame.unit.rows, sums.out.cols, sums.top_k, kQuantizedPart), body);
}

}  // namespace hpmoe

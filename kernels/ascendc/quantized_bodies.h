// Bodies of quantised rows: floats to elements of one byte with scales, back to floats, and scaling of int8 products; see
// tile_ops/row_formats.py.
#pragma once

#include "block_scales.h"

namespace hpmoe {

constexpr int32_t kRowScaleBytes = 4, kQuantizedPart = kPieceFloats / 2;  // elements of a row that are processed at once

// Returns true for the formats that have bodies here: one float32 scale a row, or mxfp8.
__aicore__ inline bool is_scaled_row(const RowFormat& format) {
  return has_cast(format.element) && format.scale == BlockScale::FLOAT32 && format.block == 0;
}

// Returns true if `packed` has rows of this format for the numbers of `plain`.
__aicore__ inline bool is_packed(const RowFormat& format, const Rows2d& packed, const Rows2d& plain) {
  return (is_scaled_row(format) || is_mxfp8(format)) && packed.dtype == static_cast<int32_t>(Dtype::UINT8) &&
         packed.cols == packed_cols(format, plain.cols);
}

// Iterates over the parts of one row.
class RowParts {
 public:
  __aicore__ inline RowParts(int32_t row, int32_t num_cols) : row_(row), num_cols_(num_cols) {}
  __aicore__ inline bool is_done() const { return col_ >= num_cols_; }
  __aicore__ inline Piece next() {
    const int32_t cols = least(kQuantizedPart, num_cols_ - col_);
    const Piece piece{row_, col_, 1, cols, round_up(cols, kBlockBytes)};
    col_ += cols;
    return piece;
  }

 private:
  int32_t row_, num_cols_, col_ = 0;
};

// Returns the scales of quantised rows of num_cols elements.
__aicore__ inline Rows2d scales_of(const Rows2d& packed, int32_t num_cols) {
  return {packed.address + num_cols, packed.row_bytes, static_cast<int32_t>(Dtype::FLOAT32), 1, true};
}

// Quantizes rows with one scale. A row stays in UB as float32, in two buffers, while its largest magnitude is computed.
// NaN and infinity are found by multiplying by 0 and summing: the sum is then NaN.
struct Quantize {
  VectorUnit& unit;
  Element element;
  Rows2d out, scales, in;

  __aicore__ inline Floats part_of(int32_t col) { return unit.floats(0)[col]; }
  __aicore__ inline Floats largest() { return unit.floats(4); }
  __aicore__ inline Floats unsound() { return unit.floats(4)[kQuantizedPart]; }

  __aicore__ inline void load(const Bytes& loaded, const Piece& piece) { unit.load(loaded, 0, in, piece); }
  __aicore__ inline void widen(const Bytes& loaded, const Piece& piece) {
    unit.widen(part_of(piece.col), loaded, 0, in.dtype, piece.num_cols);
    if (piece.col == 0) AscendC::Duplicate(largest(), 0.0f, 2 * kQuantizedPart);
  }
  __aicore__ inline void compute(const Piece& piece) {
    const Floats magnitudes = unit.floats(2), zeros = unit.floats(2)[kQuantizedPart], x = part_of(piece.col);
    AscendC::Abs(magnitudes, x, piece.num_cols);
    AscendC::Muls(zeros, x, 0.0f, piece.num_cols);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Max(largest(), largest(), magnitudes, piece.num_cols);
    AscendC::Add(unsound(), unsound(), zeros, piece.num_cols);
    AscendC::PipeBarrier<PIPE_V>();
    if (piece.col + piece.num_cols == in.cols) finish(piece.row);
  }

  __aicore__ inline void finish(int32_t row) {
    const int32_t count = least(in.cols, kQuantizedPart);
    const Floats scale = unit.floats(3), sound = unit.floats(3)[kLane], divisor = unit.floats(3)[2 * kLane];
    in_order::ReduceMax(scale, largest(), unit.floats(2), count, false);
    AscendC::ReduceSum(sound, unsound(), unit.floats(2), count);
    AscendC::Duplicate(divisor, largest_of(element), kLane);
    AscendC::PipeBarrier<PIPE_V>();
    in_order::Div(scale, scale, divisor, 1);
    in_order::Add(scale, scale, sound, 1);  // 0 for a row without NaN and infinity
    unit.wait_for_results();
    const float factor = scale.GetValue(0);
    for (RowParts parts(row, in.cols); !parts.is_done();) write_part(parts.next(), factor);
    in_order::Duplicate(scale, factor, kLane);
    unit.write(scales, {row, 0, 1, 1, kLane}, scale, kLane);
  }
  __aicore__ inline void write_part(const Piece& piece, float scale) {
    const Floats x = part_of(piece.col), divisor = unit.floats(2);
    if (scale > 0.0f) {
      in_order::Duplicate(divisor, scale, piece.num_cols);
      AscendC::Div(x, x, divisor, piece.num_cols);
    } else {
      AscendC::Duplicate(x, 0.0f, piece.num_cols);
    }
    AscendC::PipeBarrier<PIPE_V>();
    Bytes result = unit.outputs.AllocTensor<uint8_t>();
    narrow_elements(element, result, x, divisor, piece.num_cols);
    unit.leave(out, piece, result);
  }
};

__aicore__ inline void quantize(VectorUnit& unit, const Frame& frame) {
  const RowFormat format = RowFormat::of(frame.op);
  const Rows2d out = frame.rows(0), in = frame.rows(1);
  if (!is_packed(format, out, in)) return unit.refuse();
  if (is_mxfp8(format)) {
    QuantizeBlocks body{unit, out, block_scales_in(out, in.cols, in.cols), in};
    for (int32_t row = 0; row < frame.unit.rows; ++row) run_pieces(unit, RowParts(row, in.cols), body);
    return;
  }
  if (in.cols > 2 * kPieceFloats) return unit.refuse();
  Quantize body{unit, format.element, out, scales_of(out, in.cols), in};
  for (int32_t row = 0; row < frame.unit.rows; ++row) run_pieces(unit, RowParts(row, in.cols), body);
}

struct Dequantize {
  VectorUnit& unit;
  Element element;
  Rows2d out, in, scales;

  __aicore__ inline void load(const Bytes& loaded, const Piece& piece) {
    unit.load(loaded, 0, in, piece);
    unit.load(loaded, 1, scales, piece);
  }
  __aicore__ inline void widen(const Bytes& loaded, const Piece& piece) {
    unit.widen(unit.floats(1), loaded, 1, scales.dtype, 1);
    widen_elements(element, unit.floats(0), loaded, unit.floats(2), piece.num_cols);
  }
  __aicore__ inline void compute(const Piece& piece) {
    unit.wait_for_results();
    in_order::Muls(unit.floats(0), unit.floats(0), unit.floats(1).GetValue(0), piece.num_cols);
    unit.write(out, piece, unit.floats(0), piece.num_cols);
  }
};

// Dequantizes mxfp8 rows, or converts elements of rows without scales.
struct DequantizeBlocks {
  VectorUnit& unit;
  Element element;
  Rows2d out, in, scales;
  bool has_scales;

  __aicore__ inline void load(const Bytes& loaded, const Piece& piece) {
    unit.load(loaded, 0, in, piece);
    if (has_scales) unit.load(loaded, 1, scales, scales_of_piece(piece));
  }
  __aicore__ inline void widen(const Bytes& loaded, const Piece& piece) {
    widen_elements(element, unit.floats(0), loaded, unit.floats(1), piece.count());
    if (has_scales) spread_scales(unit, loaded, 1, piece);
  }
  __aicore__ inline void compute(const Piece& piece) {
    if (has_scales) AscendC::Mul(unit.floats(0), unit.floats(0), unit.floats(4)[kMostScaled], piece.count());
    AscendC::PipeBarrier<PIPE_V>();
    unit.write(out, piece, unit.floats(0), piece.count());
  }
};

__aicore__ inline void dequantize(VectorUnit& unit, const Frame& frame) {
  const RowFormat format = RowFormat::of(frame.op);
  const Rows2d out = frame.rows(0), in = frame.rows(1);
  if (!is_packed(format, in, out)) return unit.refuse();
  if (is_mxfp8(format)) {
    DequantizeBlocks body{unit, format.element, out, in, block_scales_in(in, out.cols, out.cols), true};
    for (int32_t row = 0; row < frame.unit.rows; ++row) run_pieces(unit, RowParts(row, out.cols), body);
    return;
  }
  Dequantize body{unit, format.element, out, in, scales_of(in, out.cols)};
  for (int32_t row = 0; row < frame.unit.rows; ++row) run_pieces(unit, RowParts(row, out.cols), body);
}

// Computes out[r, n] = float32(sums[r, n]) * scale of row r * scale of column n of the slot's expert.
struct Rescale {
  VectorUnit& unit;
  Rows2d out, sums, scales, of_columns;
  bool has_columns, are_integers;

  __aicore__ inline void load(const Bytes& loaded, const Piece& piece) {
    unit.load(loaded, 0, sums, piece);
    unit.load(loaded, 1, scales, piece);
    if (has_columns) unit.load(loaded, 2, of_columns, {0, piece.col, 1, piece.num_cols, piece.pitch});
  }
  __aicore__ inline void widen(const Bytes& loaded, const Piece& piece) {
    if (are_integers) {
      AscendC::Cast(unit.floats(0), loaded.ReinterpretCast<int32_t>(), AscendC::RoundMode::CAST_RINT, piece.count());
    } else {
      unit.widen(unit.floats(0), loaded, 0, sums.dtype, piece.count());
    }
    unit.widen(unit.floats(1), loaded, 1, scales.dtype, piece.num_rows * kLane);
    if (has_columns) unit.widen(unit.floats(2), loaded, 2, of_columns.dtype, piece.pitch);
  }
  __aicore__ inline void compute(const Piece& piece) {
    const Floats x = unit.floats(0);
    unit.wait_for_results();
    for (int32_t r = 0; r < piece.num_rows; ++r)
      AscendC::Muls(x[r * piece.pitch], x[r * piece.pitch], unit.floats(1).GetValue(r * kLane), piece.num_cols);
    AscendC::PipeBarrier<PIPE_V>();
    if (has_columns) {
      for (int32_t r = 0; r < piece.num_rows; ++r)
        AscendC::Mul(x[r * piece.pitch], x[r * piece.pitch], unit.floats(2), piece.num_cols);
      AscendC::PipeBarrier<PIPE_V>();
    }
    unit.write(out, piece, x, piece.count());
  }
};

__aicore__ inline void rescale(VectorUnit& unit, const Frame& frame) {
  const bool has_columns = frame.op.num_operands > 3;
  const Rows2d packed = frame.rows(2);
  Rescale body{unit,
               frame.rows(0),
               frame.rows(1),
               scales_of(packed, packed.cols - kRowScaleBytes),
               has_columns ? frame.rows(3) : Rows2d{},
               has_columns,
               frame.rows(1).dtype == static_cast<int32_t>(Dtype::INT32)};
  const bool is_sums = body.are_integers || body.sums.dtype == static_cast<int32_t>(Dtype::FLOAT32);
  if (!is_sums || packed.dtype != static_cast<int32_t>(Dtype::UINT8)) return unit.refuse();
  run_pieces(unit, Pieces(frame.unit.rows, frame.task.cols, kQuantizedPart), body);
}

}  // namespace hpmoe

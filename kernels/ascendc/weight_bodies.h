// Quantizes experts' weights, and dequantizes them for a matrix core; see tile_ops/quantized_matmuls.py.
#pragma once

#include "map_functions.h"
#include "quantized_bodies.h"

namespace hpmoe {

// Columns of one matrix of `depth` rows; each becomes a row of the result. A tile of UB is `deep` of the matrix's rows,
// `pitch` numbers apart.
struct WeightColumns {
  static constexpr int32_t kMost = 64;

  Rows2d in, codes, scales;
  int32_t depth, num_cols, pitch, deep;
};

// Iterates over the depth of such columns, a tile at a time.
class Depths {
 public:
  __aicore__ inline explicit Depths(const WeightColumns& of) : of_(of) {}
  __aicore__ inline bool is_done() const { return row_ >= of_.depth; }
  __aicore__ inline Piece next() {
    const Piece piece{row_, 0, least(of_.deep, of_.depth - row_), of_.num_cols, of_.pitch};
    row_ += of_.deep;
    return piece;
  }

 private:
  const WeightColumns& of_;
  int32_t row_ = 0;
};

// Computes the scale of each column: magnitudes, and zeros or NaN, are folded over all tiles elementwise, then over the
// rows of one tile.
struct ColumnScales {
  VectorUnit& unit;
  Element element;
  const WeightColumns& of;

  __aicore__ inline Floats largest() { return unit.floats(2); }
  __aicore__ inline Floats unsound() { return unit.floats(3); }
  __aicore__ inline int32_t tile() const { return of.deep * of.pitch; }

  __aicore__ inline void begin() {
    AscendC::Duplicate(largest(), 0.0f, tile());
    AscendC::Duplicate(unsound(), 0.0f, tile());
  }
  __aicore__ inline void load(const Bytes& loaded, const Piece& piece) { unit.load(loaded, 0, of.in, piece); }
  __aicore__ inline void widen(const Bytes& loaded, const Piece& piece) {
    unit.widen(unit.floats(0), loaded, 0, of.in.dtype, piece.count());
  }
  __aicore__ inline void compute(const Piece& piece) {
    const Floats x = unit.floats(0), magnitudes = unit.floats(1);
    in_order::Abs(magnitudes, x, piece.count());
    in_order::Muls(x, x, 0.0f, piece.count());
    AscendC::Max(largest(), largest(), magnitudes, piece.count());
    AscendC::Add(unsound(), unsound(), x, piece.count());
    AscendC::PipeBarrier<PIPE_V>();
  }
  // Writes the scales to each row of the tile, and to `scales`.
  __aicore__ inline void end() {
    for (int32_t rows = of.deep; rows > 1; rows = (rows + 1) / 2) {
      const int32_t half = (rows + 1) / 2 * of.pitch, count = rows / 2 * of.pitch;
      AscendC::Max(largest(), largest(), largest()[half], count);
      AscendC::Add(unsound(), unsound(), unsound()[half], count);
      AscendC::PipeBarrier<PIPE_V>();
    }
    in_order::Duplicate(unit.floats(0), largest_of(element), of.pitch);
    in_order::Div(largest(), largest(), unit.floats(0), of.pitch);
    in_order::Add(largest(), largest(), unsound(), of.pitch);
    unit.write(of.scales, {0, 0, 1, of.num_cols, of.pitch}, largest(), of.pitch);
    for (int32_t rows = 1; rows < of.deep; rows *= 2) {
      in_order::Muls(largest()[rows * of.pitch], largest(), 1.0f, least(rows, of.deep - rows) * of.pitch);
    }
  }
};

// Finds the byte of the tile that holds each element, column after column, `deep` elements for each column.
__aicore__ inline void find_transposed_places(const AscendC::LocalTensor<int32_t>& places, const WeightColumns& of,
                                              int32_t deep) {
  constexpr auto kBytes = static_cast<int32_t>(sizeof(float));
  in_order::CreateVecIndex(places, 0, deep);
  in_order::Muls(places, places, of.pitch * kBytes, deep);
  for (int32_t col = 1; col < of.num_cols; ++col) AscendC::Adds(places[col * deep], places, col * kBytes, deep);
  AscendC::PipeBarrier<PIPE_V>();
}

// Computes elements: numbers divided by their scales, or zeros for a NaN scale, transposed so that each column becomes a
// row.
struct ColumnElements {
  VectorUnit& unit;
  Element element;
  const WeightColumns& of;
  int32_t laid_out;  // depth for which the positions are known

  __aicore__ inline Floats scales() { return unit.floats(2); }
  __aicore__ inline AscendC::LocalTensor<int32_t> places() { return unit.floats(4).ReinterpretCast<int32_t>(); }

  __aicore__ inline void begin() {
    const Floats zeros = unit.floats(1);
    const int32_t tile = of.deep * of.pitch;
    in_order::Duplicate(zeros, 0.0f, tile);
    in_order::Compare(unit.mask(), scales(), zeros, AscendC::CMPMODE::GT, tile);
  }
  __aicore__ inline void load(const Bytes& loaded, const Piece& piece) { unit.load(loaded, 0, of.in, piece); }
  __aicore__ inline void widen(const Bytes& loaded, const Piece& piece) {
    unit.widen(unit.floats(0), loaded, 0, of.in.dtype, piece.count());
  }
  __aicore__ inline void compute(const Piece& piece) {
    const Floats x = unit.floats(0), transposed = unit.floats(1);
    const int32_t deep = round_up(piece.num_rows, kBlockBytes), count = deep * piece.pitch;
    if (deep != laid_out) find_transposed_places(places(), of, deep);
    laid_out = deep;
    AscendC::Div(x, x, scales(), count);
    AscendC::Duplicate(transposed, 0.0f, count);
    AscendC::PipeBarrier<PIPE_V>();
    in_order::Select(x, unit.mask(), x, transposed, AscendC::SELMODE::VSEL_TENSOR_TENSOR_MODE, count);
    in_order::Gather(transposed, x, places().ReinterpretCast<uint32_t>(), 0, of.num_cols * deep);
    Bytes result = unit.outputs.AllocTensor<uint8_t>();
    narrow_elements(element, result, transposed, x, of.num_cols * deep);
    unit.leave(of.codes, {0, piece.row, of.num_cols, piece.num_rows, deep}, result);
  }
};

// ColumnElements for mxfp8: transposes the numbers first, so that a column's blocks are contiguous, and stores scales
// after the elements.
struct ColumnBlocks {
  VectorUnit& unit;
  const WeightColumns& of;

  __aicore__ inline void load(const Bytes& loaded, const Piece& piece) { unit.load(loaded, 0, of.in, piece); }
  __aicore__ inline void widen(const Bytes& loaded, const Piece& piece) {
    in_order::Duplicate(unit.floats(1), 0.0f, kMostScaled);  // pads the last blocks
    unit.widen(unit.floats(1), loaded, 0, of.in.dtype, piece.count());
  }
  __aicore__ inline void compute(const Piece& piece) {
    const int32_t deep = round_up(piece.num_rows, kScaledBlock), per_column = deep / kScaledBlock;
    const auto places = unit.floats(4).ReinterpretCast<int32_t>();
    find_transposed_places(places, of, deep);
    in_order::Gather(unit.floats(0), unit.floats(1), places.ReinterpretCast<uint32_t>(), 0, of.num_cols * deep);
    BlockScaler scaler(unit);
    const Floats codes = scaler.scale(of.num_cols * per_column);
    scaler.write_elements(of.codes, {0, piece.row, of.num_cols, piece.num_rows, deep}, of.num_cols * deep);
    for (int32_t col = 0; col < of.num_cols; ++col)
      AscendC::CreateVecIndex(places[col * kBlockBytes], col * per_column, kBlockBytes);
    AscendC::PipeBarrier<PIPE_V>();
    in_order::Muls(places, places, static_cast<int32_t>(sizeof(float)), of.num_cols * kBlockBytes);
    in_order::Gather(unit.floats(1), codes, places.ReinterpretCast<uint32_t>(), 0, of.num_cols * kBlockBytes);
    scaler.write_scales(of.scales, {0, piece.row / kScaledBlock, of.num_cols, per_column, kBlockBytes}, unit.floats(1),
                        of.num_cols * kBlockBytes);
  }
};

// Quantizes columns of matrices to rows of codes with scales.
__aicore__ inline void quantize_columns(VectorUnit& unit, const Frame& frame, const RowFormat& format, int32_t cols) {
  const Rows2d scales = frame.rows(0), codes = frame.rows(1);
  const Buffer given = frame.buffer(2);
  const int32_t size = element_bytes(given.dtype), elements = is_mxfp8(format) ? kMostScaled : piece_elements(size);
  for (int32_t done = 0, count; done < frame.unit.rows; done += count) {
    const int32_t row = frame.unit.start + done, col = row % cols;
    count = least(least(WeightColumns::kMost, frame.unit.rows - done), cols - col);
    const int32_t pitch = round_up(count, kLane), deep = elements / pitch / kBlockBytes * kBlockBytes;
    const uint64_t first = static_cast<uint64_t>(row / cols) * codes.cols * cols + col;
    const WeightColumns columns{{frame.base(2) + first * size, static_cast<int64_t>(cols) * size, given.dtype, count, false},
                                {codes.address + done * codes.row_bytes, codes.row_bytes, codes.dtype, codes.cols, false},
                                {scales.address + done * scales.row_bytes, scales.row_bytes, scales.dtype, count, false},
                                codes.cols,
                                count,
                                pitch,
                                deep};
    if (is_mxfp8(format)) {
      ColumnBlocks blocks{unit, columns};
      run_pieces(unit, Depths(columns), blocks);
      continue;
    }
    ColumnScales of_columns{unit, format.element, columns};
    of_columns.begin();
    run_pieces(unit, Depths(columns), of_columns);
    of_columns.end();
    ColumnElements elements_of{unit, format.element, columns, 0};
    elements_of.begin();
    run_pieces(unit, Depths(columns), elements_of);
  }
}

// Quantizes a weight by columns, or by rows if its matrices have one column.
__aicore__ inline void quantize_weight(VectorUnit& unit, const Frame& frame) {
  const RowFormat format = RowFormat::of(frame.op);
  Rows2d scales = frame.rows(0);
  const Rows2d codes = frame.rows(1);
  const Buffer given = frame.buffer(2);
  const int32_t cols = params::WeightFormat::of(frame.op).cols, size = element_bytes(given.dtype),
                bytes = static_cast<int32_t>(Dtype::UINT8);
  const bool fits = is_mxfp8(format) ? scales.dtype == bytes
                                     : is_scaled_row(format) && is_float(scales.dtype) && scales.cols == 1;
  if (!fits || !is_float(given.dtype) || codes.dtype != bytes) return unit.refuse();
  if (cols > 1) return quantize_columns(unit, frame, format, cols);
  const Rows2d rows{frame.element(2, given, frame.unit.start, 0), static_cast<int64_t>(codes.cols) * size, given.dtype,
                    codes.cols, false};
  if (is_mxfp8(format)) {
    QuantizeBlocks body{unit, codes, scales, rows};
    for (int32_t row = 0; row < frame.unit.rows; ++row) run_pieces(unit, RowParts(row, codes.cols), body);
    return;
  }
  if (codes.cols > 2 * kPieceFloats) return unit.refuse();
  scales.is_column = true;
  Quantize body{unit, format.element, codes, scales, rows};
  for (int32_t row = 0; row < frame.unit.rows; ++row) run_pieces(unit, RowParts(row, codes.cols), body);
}

// Converts elements to numbers for a matrix core; multiplies mxfp8 by its scales.
__aicore__ inline void dequantize_weight(VectorUnit& unit, const Frame& frame) {
  const RowFormat format = RowFormat::of(frame.op);
  const bool has_scales = is_mxfp8(format);
  DequantizeBlocks body{unit, format.element, frame.rows(0), frame.rows(1), {}, has_scales};
  if (has_scales) body.scales = block_scales_in(frame.rows(2), 0, body.out.cols);
  const bool fits = is_float(body.out.dtype) && body.in.dtype == static_cast<int32_t>(Dtype::UINT8);
  if (!fits || (!has_scales && !is_scaled_row(format))) return unit.refuse();
  for (int32_t row = 0; row < frame.unit.rows; ++row) run_pieces(unit, RowParts(row, body.out.cols), body);
}

}  // namespace hpmoe

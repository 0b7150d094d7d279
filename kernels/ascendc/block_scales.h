// Rows of mxfp8: elements of float8_e4m3fn, followed by one e8m0 scale (a power of two) for each 32 elements; see
// tile_ops/row_formats.py.
#pragma once

#include "elements.h"

namespace hpmoe {

constexpr int32_t kScaledBlock = 32, kNanScale = 255, kElementExponent = 8;
constexpr int32_t kExponentBits = 23;  // lowest exponent bit of a float32
constexpr int32_t kMostScaled = kPieceFloats / 2;

__aicore__ inline bool is_mxfp8(const RowFormat& format) {
  return kHasFp8 && format.element == Element::E4M3 && format.scale == BlockScale::E8M0 && format.block == kScaledBlock;
}

// Returns the scales of rows of num_cols elements; they begin `place` bytes into the rows' scales.
__aicore__ inline Rows2d block_scales_in(const Rows2d& rows, int32_t place, int32_t num_cols) {
  return {rows.address + place, rows.row_bytes, static_cast<int32_t>(Dtype::UINT8),
          (num_cols + kScaledBlock - 1) / kScaledBlock, false};
}

// Returns the piece of scales that belongs to a piece of elements.
__aicore__ inline Piece scales_of_piece(const Piece& piece) {
  const int32_t first = piece.col / kScaledBlock, last = (piece.col + piece.num_cols - 1) / kScaledBlock;
  return {piece.row, first, piece.num_rows, last - first + 1, round_up(last - first + 1, kBlockBytes)};
}

// Sets, for each element of a piece, the byte offset of its scale among rows of scales that are `pitch` numbers apart.
__aicore__ inline void find_scales(const AscendC::LocalTensor<int32_t>& places, const Piece& piece, int32_t pitch) {
  constexpr auto kBytes = static_cast<int32_t>(sizeof(float));
  for (int32_t r = 0; r < piece.num_rows; ++r)
    AscendC::CreateVecIndex(places[r * piece.pitch], piece.col % kScaledBlock, piece.pitch);
  AscendC::PipeBarrier<PIPE_V>();
  in_order::ShiftRight(places, places, 5, piece.count());
  in_order::Muls(places, places, kBytes, piece.count());
  for (int32_t r = 1; r < piece.num_rows; ++r)
    AscendC::Adds(places[r * piece.pitch], places[r * piece.pitch], r * pitch * kBytes, piece.pitch);
  AscendC::PipeBarrier<PIPE_V>();
}

// Expands scales in slot `i` of an input buffer to one number for each element, in the second half of floats(4).
// Overwrites floats(3) and the first half of floats(4). The scale of a block with infinity or NaN becomes infinite; its
// elements are 0, and their product is NaN.
__aicore__ inline void spread_scales(VectorUnit& unit, const Bytes& loaded, int32_t i, const Piece& piece) {
  const Piece of = scales_of_piece(piece);
  const Floats scales = unit.floats(3), spread = unit.floats(4)[kMostScaled];
  const auto halves = spread.ReinterpretCast<half>();
  const auto bits = scales.ReinterpretCast<int32_t>(), places = unit.floats(4).ReinterpretCast<int32_t>();
  in_order::Cast(halves, loaded[i * kPieceBytes], AscendC::RoundMode::CAST_NONE, of.count());
  in_order::Cast(scales, halves, AscendC::RoundMode::CAST_NONE, of.count());
  in_order::Cast(bits, scales, AscendC::RoundMode::CAST_RINT, of.count());
  in_order::Muls(bits, bits, 1 << kExponentBits, of.count());
  in_order::Maxs(bits, bits, 1 << (kExponentBits - 1), of.count());  // the least scale is a subnormal number
  find_scales(places, piece, of.pitch);
  in_order::Gather(spread, scales, places.ReinterpretCast<uint32_t>(), 0, piece.count());
}

// Scales the numbers in floats(0) to elements, block by block, and returns the scales as numbers. Overwrites all other
// floats.
class BlockScaler {
 public:
  __aicore__ inline explicit BlockScaler(VectorUnit& unit) : unit_(unit) {}

  __aicore__ inline Floats scale(int32_t blocks) {
    const int32_t count = blocks * kScaledBlock;
    const Floats x = unit_.floats(0), factors = unit_.floats(1), zeros = unit_.floats(1)[kMostScaled];
    const Floats codes = find_factors(x, factors, blocks), spread = unit_.floats(4)[kMostScaled];
    const auto places = unit_.floats(4).ReinterpretCast<int32_t>();
    find_scales(places, {0, 0, 1, count, count}, 0);
    AscendC::Gather(spread, factors, places.ReinterpretCast<uint32_t>(), 0, count);
    AscendC::Duplicate(zeros, 0.0f, kMostScaled);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Mul(x, x, spread, count);
    const auto whole = static_cast<uint32_t>(round_up(count, kFloatsAtOnce));
    AscendC::PipeBarrier<PIPE_V>();
    in_order::Compare(unit_.mask(), x, x, AscendC::CMPMODE::EQ, whole);
    in_order::Select(x, unit_.mask(), x, zeros, AscendC::SELMODE::VSEL_TENSOR_TENSOR_MODE, whole);
    in_order::Mins(x, x, largest_of(Element::E4M3), count);
    in_order::Maxs(x, x, -largest_of(Element::E4M3), count);
    return codes;
  }
  __aicore__ inline void write_elements(const Rows2d& to, const Piece& piece, int32_t count) {
    Bytes result = unit_.outputs.AllocTensor<uint8_t>();
    narrow_fp8(result, unit_.floats(0), count);
    unit_.leave(to, piece, result);
  }
  __aicore__ inline void write_scales(const Rows2d& to, const Piece& piece, const Floats& codes, int32_t count) {
    const auto halves = unit_.floats(2).ReinterpretCast<half>();
    in_order::Cast(halves, codes, AscendC::RoundMode::CAST_RINT, count);
    Bytes result = unit_.outputs.AllocTensor<uint8_t>();
    AscendC::Cast(result, halves, AscendC::RoundMode::CAST_RINT, count);
    unit_.leave(to, piece, result);
  }

 private:
  // Returns 1 / scale for each block; NaN for a block with infinity or NaN.
  __aicore__ inline Floats find_factors(const Floats& x, const Floats& factors, int32_t blocks) {
    const int32_t count = blocks * kScaledBlock, capacity = kMostScaled / kScaledBlock;
    const Floats magnitudes = unit_.floats(2), nothing = unit_.floats(2)[kMostScaled];
    const Floats largest = unit_.floats(3), unsound = unit_.floats(3)[capacity], codes = unit_.floats(3)[2 * capacity],
                 zeros = unit_.floats(3)[3 * capacity], none = unit_.floats(3)[4 * capacity];
    const auto bits = largest.ReinterpretCast<int32_t>(), inverse = factors.ReinterpretCast<int32_t>();
    AscendC::Abs(magnitudes, x, count);
    AscendC::Muls(nothing, x, 0.0f, count);
    AscendC::Duplicate(zeros, 0.0f, capacity);
    AscendC::Duplicate(none, static_cast<float>(kNanScale), capacity);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::WholeReduceMax(largest, magnitudes, kScaledBlock, blocks, 1, 1, kScaledBlock / 8,
                            AscendC::ReduceOrder::ORDER_ONLY_VALUE);
    AscendC::WholeReduceSum(unsound, nothing, kScaledBlock, blocks, 1, 1, kScaledBlock / 8);
    AscendC::PipeBarrier<PIPE_V>();
    in_order::ShiftRight(bits, bits, kExponentBits, blocks);
    in_order::Maxs(bits, bits, kElementExponent, blocks);
    in_order::Adds(bits, bits, -kElementExponent, blocks);
    AscendC::Cast(codes, bits, AscendC::RoundMode::CAST_RINT, blocks);
    AscendC::Muls(inverse, bits, -(1 << kExponentBits), blocks);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Adds(inverse, inverse, 254 << kExponentBits, blocks);
    AscendC::Compare(unit_.mask(), unsound, zeros, AscendC::CMPMODE::EQ, capacity);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Add(factors, factors, unsound, blocks);
    AscendC::Select(codes, unit_.mask(), codes, none, AscendC::SELMODE::VSEL_TENSOR_TENSOR_MODE, capacity);
    AscendC::PipeBarrier<PIPE_V>();
    return codes;
  }

  VectorUnit& unit_;
};

// Quantizes parts of rows. A part begins at a block, so that it has all elements of its blocks.
struct QuantizeBlocks {
  VectorUnit& unit;
  Rows2d out, scales, in;

  __aicore__ inline void load(const Bytes& loaded, const Piece& piece) { unit.load(loaded, 0, in, piece); }
  __aicore__ inline void widen(const Bytes& loaded, const Piece& piece) {
    in_order::Duplicate(unit.floats(0), 0.0f, kMostScaled);  // pads the last block
    unit.widen(unit.floats(0), loaded, 0, in.dtype, piece.num_cols);
  }
  __aicore__ inline void compute(const Piece& piece) {
    const Piece of = scales_of_piece(piece);
    BlockScaler scaler(unit);
    const Floats codes = scaler.scale(of.num_cols);
    scaler.write_scales(scales, of, codes, of.num_cols);
    scaler.write_elements(out, piece, of.num_cols * kScaledBlock);
  }
};

}  // namespace hpmoe

// Bodies that count the values of a row that are NaN or out of a range, and that replace such values.
//
// Nearly every row has none: vector instructions count while rows pass through, and the scalar unit works only on rows
// with such values.
#pragma once

#include "reduce_bodies.h"

namespace hpmoe {

// Parts of UB, in words: a whole row, the findings in it, and the counts of each row of a task.
constexpr int32_t kMostGuarded = 16 * 1024, kMostGuardedRows = 2048;
constexpr int32_t kFoundAt = kMostGuarded, kCountsAt = kNumFloats * kPieceFloats - kMostGuardedRows;
static_assert(kFoundAt + 1 + kMostGuarded / 32 <= kCountsAt, "what is found lies before the counts");

struct Range {
  float low, high;
};

// NaN is in no range.
__aicore__ inline bool is_outside(const Range& range, float value) { return !(value >= range.low && value <= range.high); }

// Counts the values outside of the range in rows. The counts are a column of `out`, or stay in UB while the rows are
// copied to `out`, unless they are there already.
struct CountOutside {
  static constexpr int32_t kAtOnce = kPieceFloats / 2;

  VectorUnit& unit;
  Rows2d out, tested;
  Range range;
  bool keeps_counts, passes;

  __aicore__ inline void init() {
    AscendC::Duplicate(part(2), range.low, kAtOnce);
    AscendC::Duplicate(part(3), range.high, kAtOnce);
    AscendC::Duplicate(part(4), 1.0f, kAtOnce);
    AscendC::Duplicate(part(5), 0.0f, kAtOnce);
    AscendC::PipeBarrier<PIPE_V>();
  }
  __aicore__ inline void load(const Bytes& in, const Piece& piece) { unit.load(in, 0, tested, piece); }
  __aicore__ inline void widen(const Bytes& in, const Piece& piece) {
    unit.widen(part(0), in, 0, tested.dtype, piece.count());
    if (piece.col == 0) AscendC::Duplicate(part(6), 0.0f, piece.count());
  }
  __aicore__ inline void compute(const Piece& piece) {
    const Floats x = part(0), inside = part(1), sums = part(6), folded = part(7);
    choose(unit.mask(), AscendC::CMPMODE::GE, x, part(2), inside, part(4), part(5), piece.count());
    choose(unit.mask(), AscendC::CMPMODE::LE, x, part(3), inside, inside, part(5), piece.count());
    for (int32_t r = 0; r < piece.num_rows; ++r)  // without padding
      AscendC::Add(sums[r * piece.pitch], sums[r * piece.pitch], inside[r * piece.pitch], piece.num_cols);
    AscendC::PipeBarrier<PIPE_V>();
    if (passes) unit.write(out, piece, x, piece.count());
    if (piece.col + piece.num_cols < tested.cols) return;
    for (int32_t r = 0; r < piece.num_rows; ++r) {
      in_order::ReduceSum(folded[r * kLane], sums[r * piece.pitch], inside, piece.pitch);
    }
    in_order::Muls(folded, folded, -1.0f, piece.num_rows * kLane);
    in_order::Adds(folded, folded, static_cast<float>(tested.cols), piece.num_rows * kLane);
    if (!keeps_counts) return unit.write(out, piece, folded, piece.num_rows * kLane);
    unit.wait_for_results();
    for (int32_t r = 0; r < piece.num_rows; ++r)
      unit.words().SetValue(kCountsAt + piece.row + r, static_cast<int32_t>(folded.GetValue(r * kLane)));
  }

 private:
  __aicore__ inline Floats part(int32_t i) const { return unit.floats(i / 2)[i % 2 * kAtOnce]; }
};

__aicore__ inline void count_outside(VectorUnit& unit, const Frame& frame) {
  CountOutside body{unit,  frame.rows(0), frame.rows(1), {frame.op.operands[2].value, frame.op.operands[3].value},
                    false, false};
  body.out.is_column = true;
  body.init();
  run_pieces(unit, Pieces(frame.unit.rows, body.tested.cols, CountOutside::kAtOnce), body);
}

// A whole row in UB, in which values are replaced.
struct RowFiller {
  VectorUnit& unit;
  Rows2d out, values, found;
  Fill fill;

  // Replaces values that another operand marks; fill_outside() finds them itself and writes the marks.
  __aicore__ inline void fill_given(int32_t row) {
    load(row);
    unit.copy_in(words().ReinterpretCast<uint8_t>(), found.address + row * found.row_bytes, 1, found.cols * 4, 0, 0);
    unit.wait_for_loads();
    unit.wait_for_results();
    fill_found(row);
  }
  __aicore__ inline void fill_outside(int32_t row, const Range& range) {
    load(row);
    unit.wait_for_results();
    find(range);
    unit.release_to_copies();
    unit.copy_out(found.address + row * found.row_bytes, words().ReinterpretCast<uint8_t>(), 1, found.cols * 4, 0, 0);
    fill_found(row);
  }

 private:
  static constexpr int32_t kAtOnce = kPieceFloats / 2;

  __aicore__ inline AscendC::LocalTensor<int32_t> words() const { return unit.words()[kFoundAt]; }
  __aicore__ inline Floats row_of() const { return unit.floats(0); }
  __aicore__ inline bool has(int32_t i) const {
    return (static_cast<uint32_t>(words().GetValue(1 + i / 32)) >> (i % 32) & 1u) != 0;
  }
  __aicore__ inline Piece piece_at(int32_t row, int32_t col) const {
    const int32_t cols = least(kAtOnce, values.cols - col);
    return {row, col, 1, cols, round_up(cols, kLane)};
  }

  __aicore__ inline void load(int32_t row) {
    for (int32_t col = 0; col < values.cols; col += kAtOnce) {
      const Piece piece = piece_at(row, col);
      Bytes in = unit.inputs.AllocTensor<uint8_t>();
      unit.load(in, 0, values, piece);
      unit.inputs.EnQue(in);
      in = unit.inputs.DeQue<uint8_t>();
      unit.widen(row_of()[col], in, 0, values.dtype, piece.pitch);
      unit.inputs.FreeTensor(in);
    }
  }
  __aicore__ inline void find(const Range& range) {
    int32_t count = 0;
    for (int32_t first = 0; first < values.cols; first += 32) {
      uint32_t bits = 0;
      for (int32_t i = 0; i < least(32, values.cols - first); ++i) {
        if (!is_outside(range, row_of().GetValue(first + i))) continue;
        bits |= 1u << i;
        ++count;
      }
      words().SetValue(1 + first / 32, static_cast<int32_t>(bits));
    }
    words().SetValue(0, count);
  }
  __aicore__ inline float sum_where(bool is_found) const {
    float sum = 0.0f;
    for (int32_t i = 0; i < values.cols; ++i)
      if (has(i) == is_found) sum += row_of().GetValue(i);
    return sum;
  }
  __aicore__ inline void fill_found(int32_t row) {
    const auto others = static_cast<float>(most(values.cols - words().GetValue(0), 1));
    const float part = fill == Fill::ZERO ? 0.0f : sum_where(fill == Fill::SPREAD) / others;
    for (int32_t i = 0; i < values.cols; ++i) {
      if (has(i)) {
        row_of().SetValue(i, fill == Fill::MEAN ? part : 0.0f);
      } else if (fill == Fill::SPREAD) {
        row_of().SetValue(i, row_of().GetValue(i) + part);
      }
    }
    unit.release_to_vectors();
    for (int32_t col = 0; col < values.cols; col += kAtOnce)
      unit.write(out, piece_at(row, col), row_of()[col], piece_at(row, col).pitch);
    drain_pipes();  // the next row is loaded into this memory
  }
};

__aicore__ inline bool can_guard(const Frame& frame) {
  const Fill fill = params::Filled::of(frame.op).fill;
  return fill >= Fill::ZERO && fill <= Fill::SPREAD && frame.rows(0).cols <= kMostGuarded &&
         frame.unit.rows <= kMostGuardedRows;
}

// Copies the rows of operand `tested` to operand 0 and writes the findings to operand 1.
__aicore__ inline void count_and_fill_operand(VectorUnit& unit, const Frame& frame, int32_t tested) {
  if (!can_guard(frame)) return unit.refuse();
  const Range range{frame.op.operands[3].value, frame.op.operands[4].value};
  const Rows2d out = frame.rows(0), found = frame.rows(1), values = frame.rows(tested);
  CountOutside count{unit, out, values, range, true, out.address != values.address};
  count.init();
  clear_rows(unit, found.address, found.row_bytes, frame.unit.rows, found.cols * 4);
  run_pieces(unit, Pieces(frame.unit.rows, values.cols, CountOutside::kAtOnce), count);
  drain_pipes();  // a row with findings is written a second time
  RowFiller filler{unit, out, values, found, params::Filled::of(frame.op).fill};
  for (int32_t row = 0; row < frame.unit.rows; ++row)
    if (unit.words().GetValue(kCountsAt + row) > 0) filler.fill_outside(row, range);
}

__aicore__ inline void count_and_fill(VectorUnit& unit, const Frame& frame) { count_and_fill_operand(unit, frame, 2); }

// Sums tokens' entries, then checks the sums that were written.
__aicore__ inline void reduce_and_fill(VectorUnit& unit, const Frame& frame) {
  if (!can_guard(frame)) return unit.refuse();
  reduce_entries(unit, frame, 2, 5);
  drain_pipes();
  count_and_fill_operand(unit, frame, 0);
}

// Copies rows of any float dtype.
struct PassFloats : OfFloats {
  Rows2d out;

  __aicore__ inline void compute(const Piece& piece) { unit.write(out, piece, unit.floats(0), piece.count()); }
};

__aicore__ inline void fill_outside(VectorUnit& unit, const Frame& frame) {
  if (!can_guard(frame)) return unit.refuse();
  constexpr int32_t kStep = kBlockBytes / 4, kRowsAtOnce = kMostGuardedRows / kStep;
  const Rows2d out = frame.rows(0), values = frame.rows(1), found = frame.rows(2);
  PassFloats pass{{unit, 1, {values}}, out};
  run_pieces(unit, Pieces(frame.unit.rows, values.cols, piece_elements(widest_of(out, values))), pass);
  RowFiller filler{unit, out, values, found, params::Filled::of(frame.op).fill};
  const AscendC::LocalTensor<int32_t> counts = unit.words()[kCountsAt];
  for (int32_t first = 0; first < frame.unit.rows; first += kRowsAtOnce) {
    const int32_t rows = least(kRowsAtOnce, frame.unit.rows - first);
    drain_pipes();
    unit.copy_in(counts.ReinterpretCast<uint8_t>(), found.address + first * found.row_bytes, rows, 4, found.row_bytes,
                 kBlockBytes);
    unit.wait_for_loads();
    for (int32_t row = 0; row < rows; ++row)
      if (counts.GetValue(row * kStep) > 0) filler.fill_given(first + row);
  }
}

}  // namespace hpmoe

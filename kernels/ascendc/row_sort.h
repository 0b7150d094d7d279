// Sorts the largest or smallest elements of each row. Of equal elements the one with the smaller column comes first; NaN
// counts as the largest.
//
// Sort32 and MrgSort sort only float32 and keep equal elements in order. Other rows are sorted digit by digit, lowest
// digit first: integers by 16 bits at a time, a row with NaN by its numbers and then by whether an element is NaN.
#pragma once

#include "column_bodies.h"
#include "map_functions.h"

namespace hpmoe {

struct TopK {
  using Words = AscendC::LocalTensor<int32_t>;
  static constexpr int32_t kMostCols = kPieceFloats / 2, kList = 32;

  VectorUnit& unit;
  Rows2d values, ids, x;
  bool is_largest, has_nan;

  // Initializes what is equal for all rows.
  __aicore__ inline void init() {
    const int32_t lanes = round_up(x.cols, kList);
    in_order::CreateVecIndex(columns(), 0, lanes);
    in_order::Muls(pair_offsets(), columns(), 8, lanes);
  }
  __aicore__ inline void load(const Bytes& in, const Piece& piece) { unit.load(in, 0, x, piece); }
  __aicore__ inline void widen(const Bytes& in, const Piece& piece) {
    unit.widen_floats(unit.floats(0), in, 0, x.dtype, piece.count());
  }
  __aicore__ inline void compute(const Piece& piece) {
    has_nan = !is_integer(x.dtype) && find_nan(piece);
    for (int32_t r = 0; r < piece.num_rows; ++r) {
      const Floats row = unit.floats(0)[r * piece.pitch * most(element_bytes(x.dtype), 4) / 4];
      sort(row);
      write(row, piece.row + r);
    }
  }

 private:
  // Buffers of 8 KB each, except the pairs.
  __aicore__ inline Floats half(int32_t i, int32_t part) const { return unit.floats(i)[part * kMostCols]; }
  __aicore__ inline Words work() const { return half(0, 1).ReinterpretCast<int32_t>(); }
  __aicore__ inline Floats keys() const { return half(1, 0); }
  __aicore__ inline Words order() const { return half(1, 1).ReinterpretCast<int32_t>(); }
  __aicore__ inline Words columns() const { return half(4, 0).ReinterpretCast<int32_t>(); }
  __aicore__ inline Words pair_offsets() const { return half(4, 1).ReinterpretCast<int32_t>(); }
  __aicore__ inline Floats pairs(int32_t i) const { return unit.floats(2 + i); }

  // Returns true if a piece has a NaN; padding of rows is ignored.
  __aicore__ inline bool find_nan(const Piece& piece) {
    const Floats found = pairs(0), ones = pairs(1), none = keys();
    AscendC::Duplicate(ones, 1.0f, kMostCols);
    AscendC::Duplicate(none, 0.0f, kMostCols);
    AscendC::Duplicate(found, 0.0f, kMostCols);
    AscendC::PipeBarrier<PIPE_V>();
    for (int32_t r = 0; r < piece.num_rows; ++r) {
      const Floats row = unit.floats(0)[r * piece.pitch];
      choose(unit.mask(), AscendC::CMPMODE::EQ, row, row, half(1, 1), none, ones, piece.pitch);
      in_order::Max(found, found, half(1, 1), piece.num_cols);
    }
    AscendC::ReduceMax(ones, found, none, piece.num_cols, false);
    unit.wait_for_results();
    return ones.GetValue(0) > 0.0f;
  }

  __aicore__ inline int32_t num_digits() const { return is_integer(x.dtype) ? element_bytes(x.dtype) / 2 : has_nan ? 2 : 1; }

  // Sorts the columns of a row.
  __aicore__ inline void sort(const Floats& row) {
    const int32_t lanes = round_up(x.cols, kList);
    for (int32_t digit = 0; digit < num_digits(); ++digit) {
      const Floats to = digit == 0 ? keys() : pairs(1);
      find_keys(row, digit, to, lanes);
      if (digit > 0) {
        in_order::Muls(work(), order(), 4, lanes);
        in_order::Gather(keys(), to, work().ReinterpretCast<uint32_t>(), 0, lanes);
      }
      const Words so_far = digit == 0 ? columns() : order();
      in_order::Sort32(pairs(0), keys(), so_far.ReinterpretCast<uint32_t>(), lanes / kList);
      const Words sorted = merge(lanes).ReinterpretCast<int32_t>();
      in_order::Gather(order(), sorted, pair_offsets().ReinterpretCast<uint32_t>(), 4, lanes);
    }
  }

  // Computes the sort keys of a digit, greatest first; padding comes last. Overwrites pairs(0).
  __aicore__ inline void find_keys(const Floats& row, int32_t digit, const Floats& to, int32_t lanes) {
    const Floats found = work().ReinterpretCast<float>();
    is_integer(x.dtype) ? find_digits(row, digit) : find_numbers(row, digit);
    in_order::Duplicate(to, -__builtin_inff(), lanes);
    in_order::Muls(to, found, is_largest ? 1.0f : -1.0f, x.cols);
  }
  // Keys of a row with NaN: first its numbers (a positive zero for both zeros, infinity for NaN), then 1 for NaN.
  __aicore__ inline void find_numbers(const Floats& row, int32_t digit) {
    const Floats found = work().ReinterpretCast<float>(), of_number = pairs(0), of_nan = pairs(0)[kMostCols];
    if (digit == 0) {
      AscendC::Adds(of_number, row, 0.0f, x.cols);
    } else {
      AscendC::Duplicate(of_number, 0.0f, x.cols);
    }
    if (!has_nan) {
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Adds(found, of_number, 0.0f, x.cols);
    } else {
      AscendC::Duplicate(of_nan, digit == 0 ? __builtin_inff() : 1.0f, round_up(x.cols, 64));
      choose(unit.mask(), AscendC::CMPMODE::EQ, row, row, found, of_number, of_nan, x.cols);
    }
    AscendC::PipeBarrier<PIPE_V>();
  }
  // Keys of integers: 16 bits of each, the highest with their sign.
  __aicore__ inline void find_digits(const Floats& row, int32_t digit) {
    const bool is_high = digit % 2 != 0, is_last = digit + 1 == num_digits();
    const Words words = pairs(0).ReinterpretCast<int32_t>(), mask = pairs(0)[kMostCols].ReinterpretCast<int32_t>();
    if (element_bytes(x.dtype) == 8) {
      AscendC::Gather(words, row.ReinterpretCast<int32_t>(), pair_offsets().ReinterpretCast<uint32_t>(), digit / 2 * 4,
                      x.cols);
    } else {
      AscendC::DataCopy(words, row.ReinterpretCast<int32_t>(), round_up(x.cols, kLane));
    }
    in_order::Duplicate(mask, 0xFFFF, x.cols);
    if (!is_high) {
      AscendC::And(words.ReinterpretCast<uint16_t>(), words.ReinterpretCast<uint16_t>(), mask.ReinterpretCast<uint16_t>(),
                   2 * x.cols);
    } else if (is_last) {
      AscendC::ShiftRight(words, words, 16, x.cols);
    } else {
      AscendC::ShiftRight(words.ReinterpretCast<uint32_t>(), words.ReinterpretCast<uint32_t>(), 16u, x.cols);
    }
    AscendC::PipeBarrier<PIPE_V>();
    in_order::Cast(work().ReinterpretCast<float>(), words, AscendC::RoundMode::CAST_RINT, x.cols);
  }

  // Merges sorted lists of 32 pairs, four lists at a time.
  __aicore__ inline Floats merge(int32_t count) {
    int32_t at = 0;
    for (int32_t length = kList; length < count; length *= 4, at = 1 - at) {
      const int32_t fours = count / (4 * length), done = 4 * length * fours;
      if (fours > 0) merge_lists(pairs(1 - at), pairs(at), length, length, 4, fours);
      if (done < count) merge_rest(pairs(1 - at)[2 * done], pairs(at)[2 * done], length, count - done);
      AscendC::PipeBarrier<PIPE_V>();
    }
    return pairs(at);
  }
  __aicore__ inline void merge_rest(const Floats& to, const Floats& from, int32_t length, int32_t count) {
    const int32_t num_lists = (count + length - 1) / length;
    if (num_lists == 1) return AscendC::DataCopy(to, from, 2 * count);
    merge_lists(to, from, length, count - (num_lists - 1) * length, num_lists, 1);
  }
  __aicore__ inline void merge_lists(const Floats& to, const Floats& from, int32_t length, int32_t last, int32_t num_lists,
                                     int32_t repeats) {
    uint16_t lengths[4] = {};
    for (int32_t i = 0; i < num_lists; ++i) lengths[i] = static_cast<uint16_t>(i + 1 < num_lists ? length : last);
    const int32_t third = num_lists > 2 ? 4 * length : 0, fourth = num_lists > 3 ? 6 * length : 0;
    AscendC::MrgSort(
        to, AscendC::MrgSortSrcList<float>(from, from[2 * length], from[third], from[fourth]),
        AscendC::MrgSort4Info(lengths, false, static_cast<uint16_t>((1 << num_lists) - 1), static_cast<uint16_t>(repeats)));
  }

  __aicore__ inline void write(const Floats& row, int32_t number) {
    const Piece piece{number, 0, 1, ids.cols, round_up(ids.cols, kLane)};
    if (most(element_bytes(x.dtype), element_bytes(values.dtype)) == 8) {
      const Scalars from{row, x.dtype}, to{keys(), values.dtype};
      unit.wait_for_results();
      for (int32_t i = 0; i < ids.cols; ++i) to.set_integer(i, from.integer(order().GetValue(i)));
      unit.release_to_vectors();
    } else {
      in_order::Muls(work(), order(), 4, ids.cols);
      in_order::Gather(keys(), row, work().ReinterpretCast<uint32_t>(), 0, ids.cols);
    }
    unit.write_floats(values, piece, keys(), piece.pitch);
    unit.write_floats(ids, piece, order().ReinterpretCast<float>(), piece.pitch);
  }
};

__aicore__ inline void top_k(VectorUnit& unit, const Frame& frame) {
  TopK body{unit, frame.rows(0), frame.rows(1), frame.rows(2), params::Choice::of(frame.op).largest, false};
  if (body.x.cols > TopK::kMostCols) return unit.refuse();
  body.init();
  const int32_t bytes = most(element_bytes(body.values.dtype), element_bytes(body.x.dtype));
  run_whole_rows(unit, frame.unit.rows, body.x.cols, bytes, body);
}

}  // namespace hpmoe

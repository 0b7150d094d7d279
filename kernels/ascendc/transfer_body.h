// Copies rows through UB: to buffers of other ranks and back, and by an index.
#pragma once

#include "task_segments.h"
#include "vector_unit.h"

namespace hpmoe {

// One end of a copy: row r begins at base + r * row_bytes, or at the r-th number of a list, of which `per_row` make one
// row. A negative number counts rows from the end of num_rows.
struct RowPlaces {
  uint64_t base;
  int64_t row_bytes;
  bool is_listed;
  int32_t per_row, num_rows;

  __aicore__ inline int32_t row(const AscendC::LocalTensor<int32_t>& list, int32_t r) const {
    const int32_t number = list.GetValue(r);
    return (number < 0 ? number + num_rows : number) / per_row;
  }
  __aicore__ inline uint64_t at(const AscendC::LocalTensor<int32_t>& list, int32_t r) const {
    return base + row(list, r) * row_bytes;
  }
};

// Copies `width` bytes of each of `num_rows` rows, in parts if a row exceeds the buffer. The list begins with the first
// row. Rows without a list are loaded or stored together.
__aicore__ inline void pass_rows(VectorUnit& unit, const AscendC::LocalTensor<int32_t>& list, int32_t num_rows,
                                 int32_t width, const RowPlaces& from, const RowPlaces& to) {
  const int32_t part = least(width, kPassBytes), pitch = round_up(part, kBlockBytes), rows_at_once = kPassBytes / pitch;
  for (int32_t first = 0; first < num_rows; first += rows_at_once) {
    const int32_t rows = least(rows_at_once, num_rows - first);
    for (int32_t begin = 0; begin < width; begin += part) {
      const int32_t bytes = least(part, width - begin);
      Bytes buffer = unit.passing.AllocTensor<uint8_t>();
      if (!from.is_listed)
        unit.copy_in(buffer, from.base + first * from.row_bytes + begin, rows, bytes, from.row_bytes, pitch);
      for (int32_t r = 0; r < rows && from.is_listed; ++r)
        unit.copy_in(buffer[r * pitch], from.at(list, first + r) + begin, 1, bytes, 0, pitch);
      unit.passing.EnQue(buffer);
      buffer = unit.passing.DeQue<uint8_t>();
      if (!to.is_listed) unit.copy_out(to.base + first * to.row_bytes + begin, buffer, rows, bytes, to.row_bytes, pitch);
      for (int32_t r = 0; r < rows && to.is_listed; ++r)
        unit.copy_out(to.at(list, first + r) + begin, buffer[r * pitch], 1, bytes, 0, pitch);
      unit.passing.FreeTensor(buffer);
    }
  }
}

// Zeros `width` bytes of each of `num_rows` rows.
__aicore__ inline void clear_rows(VectorUnit& unit, uint64_t to, int64_t row_bytes, int32_t num_rows, int32_t width) {
  const int32_t part = least(width, kPieceBytes), pitch = round_up(part, kBlockBytes), rows_at_once = kPieceBytes / pitch;
  for (int32_t first = 0; first < num_rows; first += rows_at_once) {
    const int32_t rows = least(rows_at_once, num_rows - first);
    for (int32_t begin = 0; begin < width; begin += part) {
      Bytes zeros = unit.outputs.AllocTensor<uint8_t>();
      AscendC::Duplicate(zeros.ReinterpretCast<float>(), 0.0f, rows * pitch / static_cast<int32_t>(sizeof(float)));
      unit.outputs.EnQue(zeros);
      zeros = unit.outputs.DeQue<uint8_t>();
      unit.copy_out(to + first * row_bytes + begin, zeros, rows, least(part, width - begin), row_bytes, pitch);
      unit.outputs.FreeTensor(zeros);
    }
  }
}

// Copies the rows of a segment from this rank to another and zeros its padding rows. The segment's list has entries,
// token * K + k.
__aicore__ inline void copy_segment(VectorUnit& unit, const Frame& frame, const Segment& segment, const EntryList& list) {
  const bool back = goes_back(frame.op);
  const Buffer buffer = frame.buffer(0);
  const int32_t size = element_bytes(buffer.dtype), width = frame.num_cols(0, buffer) * size;
  const int64_t row_bytes = static_cast<int64_t>(buffer.cols) * size;
  const int32_t top_k = frame.routing.route().top_k;
  const auto token_side = static_cast<Rows>(frame.op.operands[back ? 0 : 1].rows);
  const bool by_token = token_side == Rows::TOKENS || token_side == Rows::RELAY_ROWS;
  RowPlaces received{0, row_bytes, false, 1, 0}, tokens{0, row_bytes, true, by_token ? top_k : 1, 0};
  RowPlaces &to = back ? tokens : received, &from = back ? received : tokens;
  to.base = address_on(frame.base(0), target_of(frame.op, segment)) + frame.first_col(0) * size;
  if (!back && segment.padding > 0)
    clear_rows(unit, to.base + segment.first_padding * row_bytes, row_bytes, segment.padding, width);
  from.base = frame.base(1) + frame.first_col(1) * size;
  received.base += segment.first_row * row_bytes;
  tokens.base += list.first_row * (by_token ? 1 : top_k) * row_bytes;
  for (int32_t first = 0; first < segment.num_entries(); first += kMaxEntries) {
    const int32_t rows = least(kMaxEntries, segment.num_entries() - first);
    pass_rows(unit, unit.read_entries(list.address + first * sizeof(int32_t), rows), rows, width, from, to);
    received.base += rows * row_bytes;
  }
}

__aicore__ inline void put(VectorUnit& unit, const Frame& frame) {
  for (TaskSegments segments(frame); segments.next();) copy_segment(unit, frame, segments.segment(), segments.list());
}
__aicore__ inline void put_back(VectorUnit& unit, const Frame& frame) { put(unit, frame); }

// Copies a block of a matrix from this rank to another.
__aicore__ inline void copy_matrix(VectorUnit& unit, const Frame& frame, const Segment& block) {
  if (block.rows == 0) return;
  const Buffer buffer = frame.buffer(0);
  const int32_t width = buffer.cols * element_bytes(buffer.dtype);
  const uint64_t to = address_on(frame.base(0), block.dest) + static_cast<uint64_t>(block.first_row) * width;
  const uint64_t from = frame.base(1) + static_cast<uint64_t>(block.first_entry) * width;
  pass_rows(unit, {}, block.rows, width, {from, width, false, 1, 0}, {to, width, false, 1, 0});
}

__aicore__ inline void replicate(VectorUnit& unit, const Frame& frame) {
  for (int32_t i = 0; i < num_segments(frame); ++i) copy_matrix(unit, frame, segment_at(frame, i));
}
__aicore__ inline void return_grads(VectorUnit& unit, const Frame& frame) { replicate(unit, frame); }

// Computes out[i] = x[index[i]]; a negative index counts from the end.
__aicore__ inline void gather(VectorUnit& unit, const Frame& frame) {
  const Buffer x = frame.buffer(1);
  const Rows2d out = frame.rows(0), index = frame.rows(2);
  RowPlaces from{frame.base(1) + frame.first_col(1) * element_bytes(x.dtype),
                 static_cast<int64_t>(x.cols) * element_bytes(x.dtype), true, 1, x.rows};
  RowPlaces to{out.address, out.row_bytes, false, 1, 0};
  const int32_t width = frame.num_cols(1, x) * element_bytes(x.dtype);
  for (int32_t first = 0; first < frame.unit.rows; first += kMaxEntries) {
    const int32_t rows = least(kMaxEntries, frame.unit.rows - first);
    const AscendC::LocalTensor<int32_t> list = unit.read_entries(index.address + first * sizeof(int32_t), rows);
    for (int32_t r = 0; r < rows; ++r) {
      if (from.row(list, r) < 0 || from.row(list, r) >= x.rows) return unit.refuse(Code::INDEX_OUT_OF_RANGE);
    }
    pass_rows(unit, list, rows, width, from, to);
    to.base += rows * out.row_bytes;
  }
}

}  // namespace hpmoe

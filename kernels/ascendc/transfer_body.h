// Rows on their way to another rank's buffer and back, through UB.
#pragma once

#include "vector_unit.h"

namespace hpmoe {

// Where in its array a token-side row stands: entries carry token * K + k.
__aicore__ inline int32_t entry_row(const Operand& operand, int32_t entry, int32_t top_k) {
  return static_cast<Rows>(operand.rows) == Rows::TOKENS ? entry / top_k : entry;
}

// Copies the rows of a segment from this rank to another. Rows that come in one by one leave together, and the other way
// round; a row longer than the buffer goes in parts.
__aicore__ inline void copy_segment(VectorUnit& unit, const Frame& frame, const Segment& segment) {
  const bool back = goes_back(frame.op);
  const int32_t top_k = frame.routing.route().top_k;
  const Buffer rows_out = frame.buffer(0);
  const int32_t size = element_bytes(rows_out.dtype), row_bytes = rows_out.cols * size;
  const int32_t width = frame.num_cols(0, rows_out) * size;  // of the task
  const uint64_t out = address_on(frame.base(0), back ? segment.source : segment.dest) + frame.first_col(0) * size;
  const uint64_t in = frame.base(1) + frame.first_col(1) * size;
  const uint64_t lists = address_on(frame.rank->args.tables, segment.source);
  const uint64_t list = lists + static_cast<uint64_t>(frame.routing.tables().entries + segment.first_entry) * 4;
  const Operand& token_side = frame.op.operands[back ? 0 : 1];
  const int32_t part = least(width, kPassBytes), pitch = round_up(part, kBlockBytes);
  const int32_t rows_at_once = least(kPassBytes / pitch, kMaxEntries);
  for (int32_t first = 0; first < segment.rows; first += rows_at_once) {
    const int32_t rows = least(rows_at_once, segment.rows - first);
    const AscendC::LocalTensor<int32_t> entries = unit.read_entries(list + first * sizeof(int32_t), rows);
    const int64_t received = static_cast<int64_t>(segment.first_row + first) * row_bytes;
    for (int32_t begin = 0; begin < width; begin += part) {
      const int32_t bytes = least(part, width - begin);
      Bytes buffer = unit.passing.AllocTensor<uint8_t>();
      if (back) unit.copy_in(buffer, in + received + begin, rows, bytes, row_bytes, pitch);
      for (int32_t r = 0; r < rows && !back; ++r) {
        const int64_t entry = entry_row(token_side, entries.GetValue(r), top_k);
        unit.copy_in(buffer[r * pitch], in + entry * row_bytes + begin, 1, bytes, 0, pitch);
      }
      unit.passing.EnQue(buffer);
      buffer = unit.passing.DeQue<uint8_t>();
      if (!back) unit.copy_out(out + received + begin, buffer, rows, bytes, row_bytes, pitch);
      for (int32_t r = 0; r < rows && back; ++r) {
        const int64_t entry = entry_row(token_side, entries.GetValue(r), top_k);
        unit.copy_out(out + entry * row_bytes + begin, buffer[r * pitch], 1, bytes, 0, pitch);
      }
      unit.passing.FreeTensor(buffer);
    }
  }
}

}  // namespace hpmoe

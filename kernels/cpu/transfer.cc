// Copies rows to the buffers of other ranks, and back.
#include <cstring>

#include "bodies.h"
#include "row_writer.h"

namespace hpmoe {
namespace {

// Returns the row of an entry (token * K + k) in its token-side array.
int64_t entry_row(const Frame& frame, const Operand& operand, const Segment& segment, int32_t entry) {
  const int32_t top_k = frame.routing->top_k();
  switch (static_cast<Rows>(operand.rows)) {
    case Rows::TOKENS: return entry / top_k;
    case Rows::RELAY_ROWS: return frame.routing->relays().relay_row(segment.of_source, segment.source, entry);
    case Rows::RELAY_ENTRIES: {
      const int64_t row = frame.routing->relays().relay_row(segment.of_source, segment.source, entry);
      return row * top_k + entry % top_k;
    }
    default: return entry;
  }
}

// Calls visit(row there, row here) for the rows of a segment's entries.
template <class Visit>
void for_each_entry(const Frame& frame, const Segment& segment, Visit visit) {
  const bool back = goes_back(frame.op);
  const Operand& token_side = frame.op.operands[back ? 0 : 1];
  const int32_t* const entries = frame.routing->entries_of(segment);
  for (int64_t i = 0; i < segment.num_entries(); ++i) {
    const int64_t received = segment.first_row + i;
    const int64_t entry = entry_row(frame, token_side, segment, entries[i]);
    visit(back ? entry : received, back ? received : entry);
  }
}

}  // namespace

int64_t copy_segment(const Frame& frame, const Segment& segment, bool is_away) {
  const int64_t size = element_size(frame.dtype(0)), stride = frame.buffer(0).cols * size, bytes = frame.num_cols(0) * size;
  char* out = frame.base(0, target_of(frame.op, segment)) + frame.first_col(0) * size;
  const char* in = frame.base(1, frame.rank) + frame.first_col(1) * size;
  const RowWriter writer(is_away);
  if (moves_copies(opcode_of(frame.op))) {
    writer.write(out + segment.first_row * stride, in + segment.first_entry * stride, segment.rows * stride);
    return segment.rows * stride;
  }
  for_each_entry(frame, segment,
                 [&](int64_t there, int64_t here) { writer.write(out + there * stride, in + here * stride, bytes); });
  const bool back = goes_back(frame.op);
  for (int64_t i = 0; !back && i < segment.padding; ++i) std::memset(out + (segment.first_padding + i) * stride, 0, bytes);
  return segment.num_entries() * bytes;
}

// Sends a segment. A rank sends padding rows only to itself, so an outbox has none.
int64_t send_segment(const Frame& frame, const Segment& segment, Outbox& outbox) {
  const int64_t size = element_size(frame.dtype(0)), stride = frame.buffer(0).cols * size;
  const bool is_matrix = moves_copies(opcode_of(frame.op));
  const int64_t bytes = is_matrix ? stride : frame.num_cols(0) * size;
  const char* in = frame.base(1, frame.rank) + frame.first_col(1) * size;
  std::vector<SentRow> rows;
  if (!is_matrix)
    for_each_entry(frame, segment, [&](int64_t there, int64_t here) { rows.push_back({there, in + here * stride}); });
  for (int64_t i = 0; is_matrix && i < segment.rows; ++i)
    rows.push_back({segment.first_row + i, in + (segment.first_entry + i) * stride});
  outbox.put(frame.op.operands[0].buffer, frame.first_col(0) * size, bytes, rows);
  return static_cast<int64_t>(rows.size()) * bytes;
}

}  // namespace hpmoe

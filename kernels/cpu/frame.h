// The view of a tile body: its task, its unit of the op's domain, and its operands as rows of any dtype.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/abi.h"
#include "core/image.h"
#include "core/operands.h"
#include "core/routing.h"
#include "core/segments.h"
#include "core/units.h"
#include "rows.h"

namespace hpmoe {

using Unit = UnitOf<int64_t>;

// The rank that a task runs on; units.h in core/ describes the interface.
struct Place {
  const Image& image;
  int32_t rank;
  int64_t launched;

  int32_t me() const { return rank; }
  int32_t ep_size() const { return image.header->ep_size; }
  int32_t tile_rows() const { return image.header->tile_rows; }
  int64_t num_tokens() const { return launched; }
  int32_t peer(int32_t position, bool back) const { return image.peer(rank, position, back); }
};

struct Frame {
  const Image& image;
  const HpmoeRank* ranks;
  const Routing* routing;  // of the op's route, or NULL
  int32_t rank;
  const Op& op;
  const Task& task;
  Unit unit;

  Place place() const { return {image, rank, ranks[rank].num_tokens}; }
  const Routing& routed() const { return *routing; }

  const Buffer& buffer(int i) const { return image.buffers[op.operands[i].buffer]; }
  Dtype dtype(int i) const { return static_cast<Dtype>(buffer(i).dtype); }
  char* base(int i, int32_t on_rank) const { return static_cast<char*>(ranks[on_rank].buffers[op.operands[i].buffer]); }
  char* element(int i, int64_t row, int64_t col) const {
    return base(i, rank) + (row * buffer(i).cols + col) * element_size(dtype(i));
  }

  int64_t first_row(int i) const { return first_row_of(*this, op.operands[i], buffer(i)); }
  int64_t first_col(int i) const { return first_col_of(op.operands[i], task); }
  int64_t num_cols(int i) const { return num_cols_of(op.operands[i], task, buffer(i)); }

  // Returns the unit's rows of operand i from the task's first column on.
  View view(int i) const {
    return {element(i, first_row(i), first_col(i)), is_one_row(op.operands[i], buffer(i)) ? 0 : int64_t{buffer(i).cols},
            static_cast<Cols>(op.operands[i].cols) == Cols::ONE ? 0 : 1, dtype(i)};
  }
};

// Makes the frame of a rank's task; the task must outlive it.
Frame make_frame(const Image& image, const HpmoeRank* ranks, const std::vector<Routing>& routings, int32_t rank,
                 const Task& task);

// Calls visit(row) for the padding rows of all experts of the rank, if the task has the first unit. The domain is tokens
// that this rank receives, so at least one such task exists.
template <class Visit>
void for_each_fan_padding(const Frame& frame, Visit visit) {
  const Routing& experts = *frame.routing->experts();
  if (frame.task.row != 0) return;
  for (int32_t e = 0; e < experts.num_local_experts(); ++e) {
    const int64_t end = experts.expert_start(frame.rank, e + 1);
    for (int64_t row = end - experts.expert_padding(frame.rank, e); row < end; ++row) visit(ExpertRow{e, row});
  }
}

// Calls visit(received row, rows) for each token of a slot of a route to ranks; `rows` are the rows of the token's
// experts on this rank.
template <class Visit>
void for_each_fan(const Frame& frame, Visit visit) {
  const Slot& slot = frame.routing->slot(frame.rank, frame.task.row);
  std::vector<ExpertRow> rows;
  for (int32_t source = 0; source < frame.image.header->ep_size; ++source) {
    const Segment part = frame.routing->segment_in_slot(source, frame.rank, slot);
    for (int64_t i = 0; i < part.rows; ++i) {
      frame.routing->find_rows_of_experts(source, frame.rank, frame.routing->entries_of(part)[i], rows);
      visit(part.first_row + i, rows);
    }
  }
}

// Visits the segments of a transfer of rows that relays forward, or get back.
template <class Visit>
void for_each_relayed_segment(const Frame& frame, Visit visit) {
  const Routing& routing = *frame.routing;
  const Opcode opcode = opcode_of(frame.op);
  const bool back = goes_back(frame.op);
  const int32_t me = frame.rank, experts = routing.num_local_experts();
  for (int32_t i = 0; i < num_segments(frame); ++i) {
    const int32_t position = is_put(opcode) ? position_of(frame.op, frame.task, i) : i / experts;
    const int32_t peer = frame.place().peer(position, back), relay = back ? peer : me, dest = back ? me : peer;
    for (int32_t source = 0; source < frame.place().ep_size(); ++source) {
      if (routing.relays().stop(source, dest) != relay) continue;
      Segment part = is_put(opcode) ? routing.segment_in_slot(source, dest, routing.slot(dest, frame.task.row))
                                    : routing.segment(source, dest, i % experts);
      part.source = relay;
      part.of_source = source;
      visit(part);
    }
  }
}

// Calls visit(segment) for the segments that a transfer task moves, or that a NOTIFY task covers.
template <class Visit>
void for_each_segment(const Frame& frame, Visit visit) {
  if (is_relayed(frame.op)) return for_each_relayed_segment(frame, visit);
  for (int32_t i = 0; i < num_segments(frame); ++i) visit(segment_at(frame, i));
}

}  // namespace hpmoe

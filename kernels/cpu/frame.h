// What a tile body sees: its task, its unit of the op's domain, and its operands as rows of any dtype.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "abi.h"
#include "image.h"
#include "routing.h"
#include "rows.h"

namespace hpmoe {

// Rows [start, start + rows) and the local expert they belong to.
struct Unit {
  int64_t start, rows;
  int32_t expert;
};

struct Frame {
  const Image& image;
  const HpmoeRank* ranks;
  const Routing* routing;  // of the op's route, or NULL
  int32_t rank;
  const Op& op;
  const Task& task;
  Unit unit;

  const Buffer& buffer(int i) const { return image.buffers[op.operands[i].buffer]; }
  Dtype dtype(int i) const { return static_cast<Dtype>(buffer(i).dtype); }
  char* base(int i, int32_t on_rank) const {
    return static_cast<char*>(ranks[on_rank].buffers[op.operands[i].buffer]);
  }
  char* element(int i, int64_t row, int64_t col) const {
    return base(i, rank) + (row * buffer(i).cols + col) * element_size(dtype(i));
  }

  int64_t first_col(int i) const {
    const Operand& operand = op.operands[i];
    return operand.offset + (static_cast<Cols>(operand.cols) == Cols::OWN ? task.col : 0);
  }
  int64_t num_cols(int i) const {
    switch (static_cast<Cols>(op.operands[i].cols)) {
      case Cols::OWN: return task.cols;
      case Cols::ALL: return buffer(i).cols - op.operands[i].offset;
      default: return 1;
    }
  }
  int64_t first_row(int i) const {
    switch (static_cast<Rows>(op.operands[i].rows)) {
      case Rows::OWN:
      case Rows::EXPERT: return unit.start;
      case Rows::SLOT_EXPERT:
        return unit.expert * int64_t{buffer(i).rows_per_expert > 0 ? buffer(i).rows_per_expert : 1};
      case Rows::REPLICA: return (unit.expert - routing->num_own_experts()) * int64_t{buffer(i).rows_per_expert};
      default: return 0;
    }
  }
  // One row serves the whole unit: ONE, or the expert's row of an [E, N] array.
  bool is_one_row(int i) const {
    const auto rows = static_cast<Rows>(op.operands[i].rows);
    return rows == Rows::ONE || (rows == Rows::SLOT_EXPERT && buffer(i).rows_per_expert == 0);
  }

  // The unit's rows of an operand, from the task's first column on.
  View view(int i) const {
    return {element(i, first_row(i), first_col(i)), is_one_row(i) ? 0 : int64_t{buffer(i).cols},
            static_cast<Cols>(op.operands[i].cols) == Cols::ONE ? 0 : 1, dtype(i)};
  }
};

// The frame of a rank's task, which has to outlive it.
Frame make_frame(const Image& image, const HpmoeRank* ranks, const std::vector<Routing>& routings, int32_t rank,
                 const Task& task);

// The event that a task waits for, or signals for its own unit.
template <class Row>
int64_t event_of(const Frame& frame, const Row& row) {
  const bool by_expert = static_cast<Index>(row.kind) == Index::SLOT_EXPERT;
  return frame.image.event_of(row, frame.task) + (by_expert ? frame.unit.expert : 0);
}

// Calls visit(received row, rows) for the tokens of a slot of a route to ranks, with the rows that this rank's experts have
// of them.
template <class Visit>
void for_each_fan(const Frame& frame, Visit visit) {
  const Slot& slot = frame.routing->slot(frame.rank, frame.task.row);
  std::vector<ExpertRow> rows;
  for (int32_t source = 0; source < frame.image.header->ep_size; ++source) {
    const Segment part = frame.routing->segment_in_slot(source, frame.rank, slot);
    for (int64_t i = 0; i < part.rows; ++i) {
      frame.routing->find_rows_of_experts(source, frame.rank, part.entries[i], rows);
      visit(part.first_row + i, rows);
    }
  }
}

// Calls visit(segment) for the block of a matrix that a task of copies moves, or for all matrices of the rank.
template <class Visit>
void for_each_copy(const Frame& frame, Visit visit) {
  const Routing& routing = *frame.routing;
  const bool back = is_back(opcode_of(frame.op));
  const bool is_all = static_cast<Domain>(frame.op.domain) == Domain::ONCE;
  const int32_t own = routing.num_own_experts(), first = is_all ? 0 : frame.task.row / frame.op.blocks;
  const int64_t height = frame.op.param[1], k0 = is_all ? 0 : frame.task.row % frame.op.blocks * int64_t{frame.op.param[0]};
  const int64_t rows = std::min<int64_t>(frame.op.param[0], height - k0);
  const std::vector<Copy>& mine = routing.copies(frame.rank);
  const int32_t count = back ? routing.num_local_experts() - own : static_cast<int32_t>(mine.size());
  for (int32_t i = first; i < (is_all ? count : std::min(first + 1, count)); ++i) {
    if (!back) {
      visit(Segment{frame.rank, mine[i].host, own + mine[i].slot, rows, mine[i].slot * height + k0, nullptr,
                    mine[i].expert * height + k0});
    } else if (routing.is_copy(frame.rank, own + i)) {
      const int32_t expert = routing.share(frame.rank, own + i).expert;
      visit(Segment{frame.rank, expert / own, expert % own, rows, routing.place_of_copy(frame.rank, i) * height + k0,
                    nullptr, i * height + k0});
    }
  }
}

// Calls visit(rank) for the ranks that a put is for, or the one of a NOTIFY.
template <class Visit>
void for_each_peer(const Frame& frame, Visit visit) {
  const int32_t last = is_put(opcode_of(frame.op)) ? frame.image.header->ep_size : frame.task.peer + 1;
  for (int32_t j = frame.task.peer; j < last; j += std::max(frame.op.num_peers, 1)) visit(frame.image.peer(frame.rank, j));
}

// Calls visit(segment) for the segments a transfer task moves (a NOTIFY: the ones it stands for).
template <class Visit>
void for_each_segment(const Frame& frame, Visit visit) {
  const Routing& routing = *frame.routing;
  const auto opcode = opcode_of(frame.op);
  if (moves_copies(opcode)) return for_each_copy(frame, visit);
  const bool back = goes_back(frame.op);
  const auto visit_experts = [&](int32_t peer, int32_t first, int32_t last) {
    for (int32_t e = first; e < last; ++e) {
      visit(back ? routing.segment(peer, frame.rank, e) : routing.segment(frame.rank, peer, e));
    }
  };
  const int32_t num_experts = routing.num_local_experts();
  if (is_exchange(opcode)) {
    for (int32_t j = 0; j < frame.image.header->ep_size; ++j)
      visit_experts(frame.image.peer(frame.rank, j), 0, num_experts);
    return;
  }
  if (is_notice(opcode)) {
    const int32_t row = frame.task.row, peer = frame.image.peer(frame.rank, frame.task.peer);
    visit_experts(peer, row < 0 ? 0 : row, row < 0 ? num_experts : row + 1);
    return;
  }
  for_each_peer(frame, [&](int32_t rank) {
    const int32_t dest = back ? frame.rank : rank;
    visit(routing.segment_in_slot(back ? rank : frame.rank, dest, routing.slot(dest, frame.task.row)));
  });
}

}  // namespace hpmoe

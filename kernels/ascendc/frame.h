// What a tile body sees: its op, its task, and where its operands lie. The device's cpu/frame.h.
#pragma once

#include "routing_tables.h"

namespace hpmoe {

struct RankView {
  ImageReader image;
  LaunchArgs args;
  int32_t num_aiv;
};

// An operand as rows of global memory: row i of the unit begins at address + i * row_bytes.
struct Rows2d {
  uint64_t address;
  int64_t row_bytes;  // 0 where one row serves the whole unit
  int32_t dtype, cols;
  bool is_column;  // one element a row
};

struct Frame {
  const RankView* rank;
  Op op;
  Task task;
  Unit unit;
  RoutingTables routing;

  __aicore__ inline Buffer buffer(int32_t i) const { return rank->image.buffer(op.operands[i].buffer); }
  __aicore__ inline uint64_t base(int32_t i) const {
    return global_at<uint64_t>(rank->args.buffers).GetValue(op.operands[i].buffer);
  }
  __aicore__ inline uint64_t element(int32_t i, const Buffer& buffer, int64_t row, int64_t col) const {
    return base(i) + (row * buffer.cols + col) * element_bytes(buffer.dtype);
  }
  __aicore__ inline int32_t first_col(int32_t i) const {
    const Operand& operand = op.operands[i];
    return operand.offset + (static_cast<Cols>(operand.cols) == Cols::OWN ? task.col : 0);
  }
  __aicore__ inline int32_t num_cols(int32_t i, const Buffer& buffer) const {
    switch (static_cast<Cols>(op.operands[i].cols)) {
      case Cols::OWN: return task.cols;
      case Cols::ALL: return buffer.cols - op.operands[i].offset;
      default: return 1;
    }
  }
  __aicore__ inline int64_t first_row(int32_t i, const Buffer& buffer) const {
    switch (static_cast<Rows>(op.operands[i].rows)) {
      case Rows::OWN:
      case Rows::EXPERT: return unit.start;
      case Rows::SLOT_EXPERT: return static_cast<int64_t>(unit.expert) * most(buffer.rows_per_expert, 1);
      case Rows::REPLICA: return static_cast<int64_t>(unit.expert - routing.num_own_experts()) * buffer.rows_per_expert;
      default: return 0;
    }
  }
  __aicore__ inline Rows2d rows(int32_t i) const {
    const Buffer b = buffer(i);
    const auto mode = static_cast<Rows>(op.operands[i].rows);
    const bool is_one_row = mode == Rows::ONE || (mode == Rows::SLOT_EXPERT && b.rows_per_expert == 0);
    return {element(i, b, first_row(i, b), first_col(i)),
            is_one_row ? 0 : static_cast<int64_t>(b.cols) * element_bytes(b.dtype), b.dtype, num_cols(i, b),
            static_cast<Cols>(op.operands[i].cols) == Cols::ONE};
  }
};

__aicore__ inline Unit cut(int32_t total, int64_t start, int32_t rows) {
  const int32_t first = static_cast<int32_t>(least(start, static_cast<int64_t>(total)));
  return {first, least(rows, total - first), 0};
}

// The rows a task stands for (for a PUT: the slot on the destination).
__aicore__ inline Unit find_unit(const RankView& rank, const RoutingTables& routing, const Op& op, const Task& task) {
  const int32_t tile_rows = rank.image.header().tile_rows, num_tokens = rank.args.num_tokens;
  switch (static_cast<Domain>(op.domain)) {
    case Domain::ONCE:
    case Domain::COPIES: return {0, 1, 0};
    case Domain::TILES:
      return cut(op.clipped ? least(op.num_rows, num_tokens) : op.num_rows, static_cast<int64_t>(task.row) * tile_rows,
                 tile_rows);
    case Domain::SLOTS: {
      const bool on_peer = is_put(opcode_of(op)) && !is_back(opcode_of(op));
      return routing.slot(on_peer ? rank.image.peer(rank.args.rank, task.peer) : rank.args.rank, task.row);
    }
    default: break;
  }
  if (static_cast<Rows>(op.operands[1].rows) == Rows::ALL)
    return {0, op.param[2] ? least(op.param[1], num_tokens) : op.param[1], 0};
  const int32_t expert = task.row / op.blocks;
  return {routing.expert_start(rank.args.rank, expert), routing.expert_rows(rank.args.rank, expert), expert};
}

// The segments that a transfer moves or a NOTIFY stands for, by number.
__aicore__ inline int32_t num_segments(const Frame& frame) {
  if (is_put(opcode_of(frame.op))) return (frame.rank->image.header().ep_size - 1 - frame.task.peer) / frame.op.num_peers + 1;
  return frame.task.row >= 0 ? 1 : frame.routing.route().num_local_experts;
}
// The block of a matrix that a task of copies moves: to the rank that has the copy, or back to its owner.
__aicore__ inline Segment copy_at(const Frame& frame) {
  const RoutingTables& routing = frame.routing;
  const int32_t me = frame.rank->args.rank, own = routing.num_own_experts(), number = frame.task.row / frame.op.blocks;
  const int32_t height = frame.op.param[1], k0 = frame.task.row % frame.op.blocks * frame.op.param[0];
  const int32_t rows = least(frame.op.param[0], height - k0);
  if (is_back(opcode_of(frame.op))) {
    if (!routing.is_copy(me, own + number)) return {me, me, 0, 0, 0, 0};
    const int32_t expert = routing.share(me, own + number).expert;
    return {me, expert / own, expert % own, rows, routing.place_of_copy(me, number) * height + k0, number * height + k0};
  }
  const Copy copy = routing.copy(me, number);
  if (copy.host < 0) return {me, me, 0, 0, 0, 0};
  return {me, copy.host, own + copy.slot, rows, copy.slot * height + k0, copy.expert * height + k0};
}
__aicore__ inline Segment segment_at(const Frame& frame, int32_t i) {
  if (moves_copies(opcode_of(frame.op))) return copy_at(frame);
  const RankView& rank = *frame.rank;
  const int32_t me = rank.args.rank;
  const int32_t peer = rank.image.peer(me, frame.task.peer + (is_put(opcode_of(frame.op)) ? i * frame.op.num_peers : 0));
  const bool back = goes_back(frame.op);
  const int32_t source = back ? peer : me, dest = back ? me : peer;
  if (is_put(opcode_of(frame.op))) return frame.routing.segment_in_slot(source, dest, frame.routing.slot(dest, frame.task.row));
  return frame.routing.segment(source, dest, frame.task.row < 0 ? i : frame.task.row);
}

}  // namespace hpmoe

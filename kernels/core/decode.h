// Decodes the queue of a worker: from a word to a task, and to the counters of its waits and signals.
#pragma once

#include "core/generated/params.h"
#include "core/generated/rules.h"

namespace hpmoe {

HPMOE_DEVICE inline Opcode opcode_of(const Op& op) { return static_cast<Opcode>(op.opcode); }

// Returns true if an op moves rows back to their tokens, or signals such a move.
HPMOE_DEVICE inline bool goes_back(const Op& op) {
  return returns_rows(opcode_of(op)) ||
         (is_completion_flag(opcode_of(op)) && params::CompletionFlag::of(op).leg == Leg::COMBINE);
}

// Returns true if relays forward the rows that an op moves, or get them back.
HPMOE_DEVICE inline bool is_relayed(const Op& op) {
  const Opcode opcode = opcode_of(op);
  return (is_put(opcode) || is_exchange(opcode)) && (static_cast<Rows>(op.operands[1].rows) == Rows::RELAY_ROWS ||
                                                     static_cast<Rows>(op.operands[0].rows) == Rows::RELAY_ENTRIES);
}

// One tile of one op: unit `row` of the op's domain, columns [col, col + cols), and position `peer` in the rank's peer
// order, or -1. A task of whole rows has cols = 0, and part number `col` of the unit's rows.
struct Task {
  int32_t op, peer, row, col, cols, task_template;
};

// Number of tasks that divide the rows of a unit.
HPMOE_DEVICE inline int32_t num_parts(const Op& op) {
  const bool has_units = op.domain == static_cast<int32_t>(Domain::SLOTS) ||
                         op.domain == static_cast<int32_t>(Domain::TILES);
  return has_units && op.cols == 0 ? op.blocks : 1;
}

// Number of column tiles, or of parts where a task takes whole rows.
HPMOE_DEVICE inline int32_t num_column_tiles(const Op& op) {
  return op.cols > 0 ? (op.cols - 1) / op.tile_cols + 1 : num_parts(op);
}

HPMOE_DEVICE inline int64_t grid_size(const Op& op) {
  return int64_t{op.num_units} * (op.num_peers > 0 ? op.num_peers : 1) * num_column_tiles(op);
}

// Splits a word of a queue: the task's template, and its place in the grid of the template's op.
HPMOE_DEVICE inline int32_t template_of(TaskWord word, int32_t index_bits) {
  return static_cast<int32_t>(word >> index_bits);
}
HPMOE_DEVICE inline int32_t place_of(TaskWord word, int32_t index_bits) {
  return static_cast<int32_t>(word & ((1u << index_bits) - 1));
}

// Returns the task at a place in the grid of op number `op_index`. Tasks are numbered by unit, then peer, then columns;
// column_tiles is num_column_tiles(op).
HPMOE_DEVICE inline Task task_at(const Op& op, int32_t op_index, int32_t task_template, int32_t index,
                                 int32_t column_tiles) {
  const int32_t place = column_tiles > 1 ? index / column_tiles : index;
  const int32_t column = index - place * column_tiles, col = op.cols > 0 ? column * op.tile_cols : column;
  const int32_t cols = op.cols - col < op.tile_cols ? op.cols - col : op.tile_cols;
  Task task{op_index, -1, place, col, op.cols > 0 ? cols : 0, task_template};
  if (op.num_peers > 0) {
    task.row = place / op.num_peers;
    task.peer = place % op.num_peers;
  }
  task.row += op.first_row;
  return task;
}

// Number of ranks that a task is for; peer_at() returns the position of the i-th of them in the peer order.
HPMOE_DEVICE inline int32_t num_task_peers(const Op& op, const Task& task, int32_t ep_size) {
  return is_put(opcode_of(op)) ? (ep_size - 1 - task.peer) / op.num_peers + 1 : 1;
}
HPMOE_DEVICE inline int32_t position_of(const Op& op, const Task& task, int32_t i) { return task.peer + i * op.num_peers; }

// Offset that a task's place adds to the event of a wait or signal of its template. For SLOT_EXPERT and ENTRY_TILE the
// routing adds a further offset.
HPMOE_DEVICE inline int64_t event_offset(int32_t kind, const Op& op, const Task& task) {
  switch (static_cast<Index>(kind)) {
    case Index::UNIT: return task.row;
    case Index::EXPERT: return task.row / op.blocks;
    case Index::PEER: return task.peer;
    case Index::PEER_UNIT: return int64_t{task.peer} * op.num_units + task.row;
    default: return 0;
  }
}

}  // namespace hpmoe

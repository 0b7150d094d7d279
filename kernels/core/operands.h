// The rows and columns of its operands that a task accesses, equal on every target. units.h describes Frame.
#pragma once

#include "core/decode.h"
#include "core/numbers.h"

namespace hpmoe {

HPMOE_DEVICE inline int32_t first_col_of(const Operand& operand, const Task& task) {
  return operand.offset + (static_cast<Cols>(operand.cols) == Cols::OWN ? task.col : 0);
}

HPMOE_DEVICE inline int32_t num_cols_of(const Operand& operand, const Task& task, const Buffer& buffer) {
  switch (static_cast<Cols>(operand.cols)) {
    case Cols::OWN: return task.cols;
    case Cols::ALL: return buffer.cols - operand.offset;
    default: return 1;
  }
}

// Returns the first row of an operand: of the frame's unit, or of the matrix of its expert.
template <class Frame>
HPMOE_DEVICE inline int64_t first_row_of(const Frame& frame, const Operand& operand, const Buffer& buffer) {
  switch (static_cast<Rows>(operand.rows)) {
    case Rows::OWN:
    case Rows::EXPERT: return frame.unit.start;
    case Rows::SLOT_EXPERT: return int64_t{frame.unit.expert} * most(buffer.rows_per_expert, 1);
    case Rows::REPLICA: return int64_t{frame.unit.expert - frame.routed().num_own_experts()} * buffer.rows_per_expert;
    default: return 0;
  }
}

// Returns true if one row serves the whole unit: mode ONE, or the expert's row of an [E, N] array.
HPMOE_DEVICE inline bool is_one_row(const Operand& operand, const Buffer& buffer) {
  const auto rows = static_cast<Rows>(operand.rows);
  return rows == Rows::ONE || (rows == Rows::SLOT_EXPERT && buffer.rows_per_expert == 0);
}

// Returns true if a worker reads a task's weight while it waits for the task: the weight belongs to the rank's own
// expert, and the unit has rows.
template <class Frame>
HPMOE_DEVICE inline bool reads_early(const Frame& frame) {
  if (!may_be_early(opcode_of(frame.op)) || !params::EarlyMatmul::of(frame.op).is_early || frame.unit.rows == 0)
    return false;
  return frame.op.num_operands < 4 || frame.unit.expert < frame.routed().num_own_experts();
}

// Number of matrix workers that read weights early; the other workers keep the memory bandwidth.
HPMOE_DEVICE inline int32_t num_early(int32_t num_workers) { return (num_workers + 1) / 2; }

// Most bytes of a weight that a worker reads between two polls.
constexpr int32_t kEarlyBytes = 128 * 1024;

}  // namespace hpmoe

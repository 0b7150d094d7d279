// Which rows and columns of its operands a task touches: the same on every target. See units.h for Frame.
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

// Where the rows of the frame's unit, or the matrix of its expert, begin.
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

// One row serves the whole unit: ONE, or the expert's row of an [E, N] array.
HPMOE_DEVICE inline bool is_one_row(const Operand& operand, const Buffer& buffer) {
  const auto rows = static_cast<Rows>(operand.rows);
  return rows == Rows::ONE || (rows == Rows::SLOT_EXPERT && buffer.rows_per_expert == 0);
}

// Whether a worker that waits for a task reads its weight meanwhile: that of one of the rank's own experts, for rows that
// there will be.
template <class Frame>
HPMOE_DEVICE inline bool reads_early(const Frame& frame) {
  if (!may_be_early(opcode_of(frame.op)) || !params::EarlyMatmul::of(frame.op).is_early || frame.unit.rows == 0)
    return false;
  return frame.op.num_operands < 4 || frame.unit.expert < frame.routed().num_own_experts();
}

// Number of matrix workers that read weights early; the others leave them the memory bandwidth.
HPMOE_DEVICE inline int32_t num_early(int32_t num_workers) { return (num_workers + 1) / 2; }

// Most bytes of a weight that are read between two checks of the wait.
constexpr int32_t kEarlyBytes = 128 * 1024;

}  // namespace hpmoe

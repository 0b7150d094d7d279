// The view of a tile body: its op, its task, and the addresses of its operands; the device's version of cpu/frame.h.
#pragma once

#include "core/operands.h"
#include "core/segments.h"
#include "routing_tables.h"
#include "task_run.h"

namespace hpmoe {

struct RankView {
  ImageReader image;
  LaunchArgs args;
  int32_t num_aiv, plan = 0;

  // The rank that a task runs on; core/units.h describes the interface.
  __aicore__ inline int32_t me() const { return args.rank; }
  __aicore__ inline int32_t ep_size() const { return image.header().ep_size; }
  __aicore__ inline int32_t tile_rows() const { return image.header().tile_rows; }
  __aicore__ inline int32_t num_tokens() const { return args.num_tokens; }
  __aicore__ inline int32_t peer(int32_t position, bool back) const { return image.peer(args.rank, position, back); }
};

// An operand as rows of global memory: row i of the unit begins at address + i * row_bytes.
struct Rows2d {
  uint64_t address;
  int64_t row_bytes;  // 0 if one row serves the whole unit
  int32_t dtype, cols;
  bool is_column;  // one element a row
};

struct Frame {
  const RankView* rank;
  const TaskRun* run;
  Op op;
  Task task;
  Unit unit;
  RoutingTables routing;

  __aicore__ inline const RankView& place() const { return *rank; }
  __aicore__ inline const RoutingTables& routed() const { return routing; }

  __aicore__ inline const Buffer& buffer(int32_t i) const { return run->buffers[i]; }
  __aicore__ inline uint64_t base(int32_t i) const { return run->bases[i]; }
  __aicore__ inline uint64_t element(int32_t i, const Buffer& buffer, int64_t row, int64_t col) const {
    return base(i) + (row * buffer.cols + col) * element_bytes(buffer.dtype);
  }
  __aicore__ inline int32_t first_col(int32_t i) const { return first_col_of(op.operands[i], task); }
  __aicore__ inline int32_t num_cols(int32_t i, const Buffer& buffer) const {
    return num_cols_of(op.operands[i], task, buffer);
  }
  __aicore__ inline int64_t first_row(int32_t i, const Buffer& buffer) const {
    return first_row_of(*this, op.operands[i], buffer);
  }
  __aicore__ inline Rows2d rows(int32_t i) const {
    const Buffer b = buffer(i);
    return {element(i, b, first_row(i, b), first_col(i)),
            is_one_row(op.operands[i], b) ? 0 : static_cast<int64_t>(b.cols) * element_bytes(b.dtype), b.dtype,
            num_cols(i, b), static_cast<Cols>(op.operands[i].cols) == Cols::ONE};
  }
};

}  // namespace hpmoe

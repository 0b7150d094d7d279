// Bodies along an axis inside rows of [outer, size, inner] elements: strided pick, strided place among zeros, and sums
// and maxima.
#pragma once

#include "reduce_bodies.h"

namespace hpmoe {

// Blocks of elements that move from one row to another: block (o, j) begins at o * far + first + j * near on either side.
struct AxisBlocks {
  int32_t outer, count, length;
  struct Side {
    int64_t far, first, near;

    __aicore__ inline int64_t at(int32_t o, int32_t j) const { return o * far + first + j * near; }
  } from, to;
};

// Merges elements that are adjacent on both sides into one block.
__aicore__ inline AxisBlocks axis_blocks(const Frame& frame, bool picks) {
  const auto p = params::AlongAxis::of(frame.op);
  const int64_t size = p.size, inner = p.inner, start = p.start * inner, step = p.step * inner;
  const auto outer = static_cast<int32_t>(frame.buffer(0).cols / (size * inner));
  const int64_t there = frame.buffer(1).cols / (outer * inner);
  const int64_t count = picks ? size : there;
  const AxisBlocks::Side dense{count * inner, 0, inner}, stepped{(picks ? there : size) * inner, start, step};
  AxisBlocks blocks{outer, static_cast<int32_t>(count), static_cast<int32_t>(inner), picks ? stepped : dense,
                    picks ? dense : stepped};
  if (p.step == 1) {
    blocks.count = 1;
    blocks.length = static_cast<int32_t>(count * inner);
  }
  return blocks;
}

// Moves the part of each block inside the task's columns, for all rows of the task.
__aicore__ inline void move_along_axis(VectorUnit& unit, const Frame& frame, const AxisBlocks& blocks) {
  const Rows2d out = frame.rows(0), in = frame.rows(1);
  const int64_t size = element_bytes(out.dtype), first_col = frame.task.col, end_col = first_col + frame.task.cols;
  for (int32_t o = 0; o < blocks.outer; ++o) {
    for (int32_t j = 0; j < blocks.count; ++j) {
      const int64_t to = blocks.to.at(o, j), first = to > first_col ? to : first_col,
                    end = least(to + blocks.length, end_col);
      if (first >= end) continue;
      const uint64_t source = in.address + (blocks.from.at(o, j) + first - to) * size;
      const uint64_t target = out.address + (first - first_col) * size;
      pass_rows(unit, {}, frame.unit.rows, static_cast<int32_t>((end - first) * size), {source, in.row_bytes, false, 1, 0},
                {target, out.row_bytes, false, 1, 0});
    }
  }
}

__aicore__ inline void pick(VectorUnit& unit, const Frame& frame) { move_along_axis(unit, frame, axis_blocks(frame, true)); }
__aicore__ inline void place(VectorUnit& unit, const Frame& frame) {
  const Rows2d out = frame.rows(0);
  clear_rows(unit, out.address, out.row_bytes, frame.unit.rows, frame.task.cols * element_bytes(out.dtype));
  AscendC::PipeBarrier<PIPE_MTE3>();  // the zeros are written before the placed elements
  move_along_axis(unit, frame, axis_blocks(frame, false));
}

// Reduces adjacent elements as a row of their own, other elements like the entries of a token.
__aicore__ inline void group_reduce(VectorUnit& unit, const Frame& frame) {
  const auto p = params::ByGroups::of(frame.op);
  if (!is_reduction(p.reduction)) return unit.refuse();
  const bool is_max = p.reduction == Reduction::MAX;
  const int32_t size = p.size, inner = p.inner;
  Rows2d out = frame.rows(0), in = frame.rows(1);
  const int32_t rows = frame.unit.rows * (out.cols / inner), width = inner == 1 ? size : inner;
  out.row_bytes = int64_t{inner} * element_bytes(out.dtype);
  out.cols = inner;
  in.row_bytes = int64_t{width} * element_bytes(in.dtype);
  in.cols = width;
  if (inner == 1) return fold(unit, out, in, rows, is_max);
  const EntryPieces pieces(rows, inner, size, piece_elements(widest_of(in, out)));
  if (is_integer(in.dtype)) {
    ReduceIntegers body{{unit, out, in}, size, is_max};
    return run_pieces(unit, pieces, body);
  }
  ReduceEntries body{unit, out, in, {}, 0, size, false, is_max};
  run_pieces(unit, pieces, body);
}

}  // namespace hpmoe

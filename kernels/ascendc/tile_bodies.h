// Which body a task has, on each kind of core. A new tile body is added here and in hpmoe/kernels/ascend_rules.py.
#pragma once

#include "counters.h"
#include "map_body.h"
#include "matmul_bodies.h"
#include "reduce_bodies.h"
#include "swiglu_bodies.h"
#include "transfer_body.h"

namespace hpmoe {

__aicore__ inline void run_task(CubeUnit& unit, const Frame& frame) {
  const bool is_empty = frame.unit.rows == 0 && static_cast<Domain>(frame.op.domain) != Domain::EXPERTS;
  if (!is_empty) run_body(unit, frame);
}

__aicore__ inline void run_task(VectorUnit& unit, const Frame& frame) {
  if (is_put(frame.op)) return copy_segment(unit, frame, segment_at(frame, 0));
  if (frame.unit.rows == 0) return;
  switch (static_cast<Opcode>(frame.op.opcode)) {
    case Opcode::SWIGLU: return swiglu(unit, frame);
    case Opcode::SWIGLU_GRAD: return swiglu_grad(unit, frame);
    case Opcode::MAP: return map(unit, frame);
    case Opcode::REDUCE: return reduce_entries(unit, frame);
    case Opcode::ROW_DOT: return row_dot(unit, frame);
    default: return;  // NOTIFY only signals
  }
}

// An AIC moves no rows, so it has none to count by token tiles.
__aicore__ inline void signal_tiles(CubeUnit&, const Frame&, const Segment&, const Counters&, int32_t, int32_t) {}

// One signal for each run of entries of one token tile.
__aicore__ inline void signal_tiles(VectorUnit& unit, const Frame& frame, const Segment& segment, const Counters& counters,
                                    int32_t target, int32_t event) {
  const int32_t tile_entries = frame.routing.route().top_k * frame.rank->image.header().tile_rows;
  const uint64_t list = address_on(frame.rank->args.tables, segment.source) +
                        static_cast<uint64_t>(frame.routing.tables().entries + segment.first_entry) * sizeof(int32_t);
  int32_t tile = -1, rows = 0;
  for (int32_t first = 0; first < segment.rows; first += kMaxEntries) {
    const int32_t count = least(kMaxEntries, segment.rows - first);
    const AscendC::LocalTensor<int32_t> entries = unit.read_entries(list + first * sizeof(int32_t), count);
    for (int32_t i = 0; i < count; ++i) {
      const int32_t next = entries.GetValue(i) / tile_entries;
      if (next != tile && rows > 0) {
        unit.add_to_counter(address_on(counters.address(event + tile), target), rows);
        rows = 0;
      }
      tile = next;
      ++rows;
    }
  }
  unit.add_to_counter(address_on(counters.address(event + tile), target), rows);
}

}  // namespace hpmoe

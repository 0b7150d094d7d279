// Runs tasks on each kind of core through the bodies of tile operations.
#pragma once

#include "core/generated/ascend_cube_bodies.h"
#include "core/generated/ascend_vector_bodies.h"
#include "counters.h"

namespace hpmoe {

// Begins a task of an AIC; its first rows may be loaded into L1 before the previous task ends. Returns BAD_IMAGE for an
// operation without a body.
__aicore__ inline Code begin_task(CubeUnit& unit, const Frame& frame) {
  const Product product = product_of(frame);
  if (product.is_refused) return Code::BAD_IMAGE;
  unit.begin(product);
  return Code::OK;
}
// Prepares to read a task's weight into L2 before the task begins.
__aicore__ inline void begin_early(CubeUnit& unit, const Frame& frame) { unit.begin_early(product_of(frame)); }
__aicore__ inline void read_early(CubeUnit& unit) { unit.read_early(); }
__aicore__ inline Code run_task(CubeUnit& unit, const Frame&) {
  unit.run();
  return Code::OK;
}
__aicore__ inline void finish_task(CubeUnit& unit) { unit.finish(); }

// Runs a task of an AIV; returns BAD_IMAGE for an operation without a body.
__aicore__ inline Code begin_task(VectorUnit&, const Frame&) { return Code::OK; }
__aicore__ inline Code run_task(VectorUnit& unit, const Frame& frame) {
  const bool is_empty = frame.unit.rows == 0 && static_cast<Domain>(frame.op.domain) != Domain::EXPERTS;
  if (is_empty && !is_put(opcode_of(frame.op))) return Code::OK;
  call_body(unit, frame);
  return unit.code();
}
__aicore__ inline void finish_task(VectorUnit&) {}
__aicore__ inline void begin_early(VectorUnit&, const Frame&) {}
__aicore__ inline void read_early(VectorUnit&) {}

// An AIC moves no rows, so it has no signals by tokens.
__aicore__ inline void signal_tiles(CubeUnit&, const Frame&, const Segment&, const Counters&, int32_t, int32_t) {}

// An AIC makes no rows by FAN_OUT, so it has no signals by slots.
__aicore__ inline void signal_fans(CubeUnit&, const Frame&, const Counters&, int32_t) {}

// Signals each run of entries that one event counts; padding rows count as rows of the first tokens.
__aicore__ inline void signal_tiles(VectorUnit& unit, const Frame& frame, const Segment& segment, const Counters& counters,
                                    int32_t target, int32_t event) {
  const RouteWords& route = frame.routing.route();
  const int32_t return_entries = route.top_k * least(route.return_tokens, most(route.num_tokens, 1));
  const uint64_t list = address_on(frame.rank->args.tables, segment.source) +
                        static_cast<uint64_t>(frame.routing.tables().entries + segment.first_entry) * sizeof(int32_t);
  int32_t tile = 0, rows = segment.padding;
  for (int32_t first = 0; first < segment.num_entries(); first += kMaxEntries) {
    const int32_t count = least(kMaxEntries, segment.num_entries() - first);
    const AscendC::LocalTensor<int32_t> entries = unit.read_entries(list + first * sizeof(int32_t), count);
    for (int32_t i = 0; i < count; ++i) {
      const int32_t next = entries.GetValue(i) / return_entries;
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

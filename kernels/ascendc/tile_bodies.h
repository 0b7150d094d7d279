// Which body a task has, on each kind of core. A new tile body is added here.
#pragma once

#include "axis_bodies.h"
#include "column_bodies.h"
#include "counters.h"
#include "draw_body.h"
#include "fan_bodies.h"
#include "guard_bodies.h"
#include "matmul_bodies.h"
#include "quantized_sums.h"
#include "reduce_bodies.h"
#include "relay_body.h"
#include "row_sort.h"
#include "swiglu_bodies.h"
#include "take_body.h"
#include "transfer_body.h"
#include "weight_bodies.h"

namespace hpmoe {

// A task of an AIC: its first rows may come into L1 while the task before it ends. BAD_IMAGE where it has no body here.
__aicore__ inline Code begin_task(CubeUnit& unit, const Frame& frame) {
  const auto opcode = opcode_of(frame.op);
  if (opcode == Opcode::GMM_INT8 && can_multiply_int8(frame)) {
    unit.begin(gmm_int8(frame));
    return Code::OK;
  }
  if (opcode == Opcode::GMM_FP8 && can_multiply_fp8(frame)) {
    unit.begin(gmm_fp8(frame));
    return Code::OK;
  }
  if ((opcode != Opcode::GMM && opcode != Opcode::WGRAD) || !can_multiply(frame)) return Code::BAD_IMAGE;
  unit.begin(opcode == Opcode::GMM ? gmm(frame) : wgrad(frame));
  return Code::OK;
}
// What a task's product will multiply by comes to L2 before it begins.
__aicore__ inline void begin_early(CubeUnit& unit, const Frame& frame) {
  switch (opcode_of(frame.op)) {
    case Opcode::GMM_INT8: return unit.begin_early(gmm_int8(frame));
    case Opcode::GMM_FP8: return unit.begin_early(gmm_fp8(frame));
    default: unit.begin_early(gmm(frame));
  }
}
__aicore__ inline void read_early(CubeUnit& unit) { unit.read_early(); }
__aicore__ inline Code run_task(CubeUnit& unit, const Frame&) {
  unit.run();
  return Code::OK;
}
__aicore__ inline void finish_task(CubeUnit& unit) { unit.finish(); }

// A task of an AIV; BAD_IMAGE where it asks for what has no body here.
__aicore__ inline Code begin_task(VectorUnit&, const Frame&) { return Code::OK; }
__aicore__ inline Code run_task(VectorUnit& unit, const Frame& frame) {
  const bool is_empty = frame.unit.rows == 0 && static_cast<Domain>(frame.op.domain) != Domain::EXPERTS;
  if (is_empty && !is_put(opcode_of(frame.op))) return Code::OK;
  Code code = Code::OK;
  switch (opcode_of(frame.op)) {
    case Opcode::PUT:
    case Opcode::PUT_BACK:
      for (TaskSegments segments(frame); segments.next();) copy_segment(unit, frame, segments.segment(), segments.list());
      break;
    case Opcode::REPLICATE:
    case Opcode::RETURN_GRADS:
      for (int32_t i = 0; i < num_segments(frame); ++i) copy_matrix(unit, frame, segment_at(frame, i));
      break;
    case Opcode::FAN_OUT: fan_out(unit, frame); break;
    case Opcode::FAN_IN: fan_in(unit, frame); break;
    case Opcode::RELAY_SUM: relay_sum(unit, frame); break;
    case Opcode::SWIGLU: swiglu(unit, frame); break;
    case Opcode::SWIGLU_GRAD: swiglu_grad(unit, frame); break;
    case Opcode::MAP: map(unit, frame); break;
    case Opcode::REDUCE: reduce_entries(unit, frame); break;
    case Opcode::ROW_REDUCE: fold_rows(unit, frame); break;
    case Opcode::ROW_DOT: dot_rows(unit, frame); break;
    case Opcode::COL_SUM: sum_columns(unit, frame); break;
    case Opcode::KEEP: keep_entries(unit, frame); break;
    case Opcode::DROP_COUNTS: drop_counts(unit, frame); break;
    case Opcode::PICK:
    case Opcode::PLACE: move_along_axis(unit, frame); break;
    case Opcode::GROUP_REDUCE: reduce_groups(unit, frame); break;
    case Opcode::ADD_COLS: code = add_cols(unit, frame); break;
    case Opcode::CUMSUM: cumsum(unit, frame); break;
    case Opcode::TAKE_COLS: code = take_cols(unit, frame); break;
    case Opcode::TOP_K: top_k(unit, frame); break;
    case Opcode::COUNT_OUTSIDE: count_outside(unit, frame); break;
    case Opcode::COUNT_AND_FILL: count_and_fill(unit, frame, 2); break;
    case Opcode::REDUCE_AND_FILL: reduce_and_fill(unit, frame); break;
    case Opcode::FILL_OUTSIDE: fill_outside(unit, frame); break;
    case Opcode::DRAW: draw(unit, frame); break;
    case Opcode::QUANTIZE: quantize(unit, frame); break;
    case Opcode::DEQUANTIZE: dequantize(unit, frame); break;
    case Opcode::REDUCE_QUANTIZED: reduce_quantized(unit, frame); break;
    case Opcode::RESCALE: rescale(unit, frame); break;
    case Opcode::QUANTIZE_WEIGHT: quantize_weight(unit, frame); break;
    case Opcode::WIDEN_WEIGHT: widen_weight(unit, frame); break;
    case Opcode::GATHER: code = gather(unit, frame); break;
    case Opcode::NOTIFY: break;  // only signals
    default: unit.refuse();
  }
  return unit.has_refused() ? Code::BAD_IMAGE : code;
}
__aicore__ inline void finish_task(VectorUnit&) {}
__aicore__ inline void begin_early(VectorUnit&, const Frame&) {}
__aicore__ inline void read_early(VectorUnit&) {}

// An AIC moves no rows, so it has none to count by their tokens.
__aicore__ inline void signal_tiles(CubeUnit&, const Frame&, const Segment&, const Counters&, int32_t, int32_t) {}

// So has it none to count by the slots they are fanned out to.
__aicore__ inline void signal_fans(CubeUnit&, const Frame&, const Counters&, int32_t) {}

// One signal for each run of entries that are counted in one event; rows of zeros are counted as the first tokens'.
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

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

__aicore__ inline Product product_of(const Frame& frame) {
  switch (opcode_of(frame.op)) {
    case Opcode::GMM: return gmm(frame);
    case Opcode::WGRAD: return wgrad(frame);
    case Opcode::GMM_INT8: return gmm_int8(frame);
    case Opcode::GMM_FP8: return gmm_fp8(frame);
    default: return refused_product();
  }
}

// A task of an AIC: its first rows may come into L1 while the task before it ends. BAD_IMAGE where it has no body here.
__aicore__ inline Code begin_task(CubeUnit& unit, const Frame& frame) {
  const Product product = product_of(frame);
  if (product.is_refused) return Code::BAD_IMAGE;
  unit.begin(product);
  return Code::OK;
}
// What a task's product will multiply by comes to L2 before it begins.
__aicore__ inline void begin_early(CubeUnit& unit, const Frame& frame) { unit.begin_early(product_of(frame)); }
__aicore__ inline void read_early(CubeUnit& unit) { unit.read_early(); }
__aicore__ inline Code run_task(CubeUnit& unit, const Frame&) {
  unit.run();
  return Code::OK;
}
__aicore__ inline void finish_task(CubeUnit& unit) { unit.finish(); }

__aicore__ inline void run_body(VectorUnit& unit, const Frame& frame) {
  switch (opcode_of(frame.op)) {
    case Opcode::PUT: return put(unit, frame);
    case Opcode::PUT_BACK: return put_back(unit, frame);
    case Opcode::REPLICATE: return replicate(unit, frame);
    case Opcode::RETURN_GRADS: return return_grads(unit, frame);
    case Opcode::FAN_OUT: return fan_out(unit, frame);
    case Opcode::FAN_IN: return fan_in(unit, frame);
    case Opcode::RELAY_SUM: return relay_sum(unit, frame);
    case Opcode::SWIGLU: return swiglu(unit, frame);
    case Opcode::SWIGLU_GRAD: return swiglu_grad(unit, frame);
    case Opcode::MAP: return map(unit, frame);
    case Opcode::REDUCE: return reduce(unit, frame);
    case Opcode::ROW_REDUCE: return row_reduce(unit, frame);
    case Opcode::ROW_DOT: return row_dot(unit, frame);
    case Opcode::COL_SUM: return col_sum(unit, frame);
    case Opcode::KEEP: return keep(unit, frame);
    case Opcode::DROP_COUNTS: return drop_counts(unit, frame);
    case Opcode::PICK: return pick(unit, frame);
    case Opcode::PLACE: return place(unit, frame);
    case Opcode::GROUP_REDUCE: return group_reduce(unit, frame);
    case Opcode::ADD_COLS: return add_cols(unit, frame);
    case Opcode::CUMSUM: return cumsum(unit, frame);
    case Opcode::TAKE_COLS: return take_cols(unit, frame);
    case Opcode::TOP_K: return top_k(unit, frame);
    case Opcode::COUNT_OUTSIDE: return count_outside(unit, frame);
    case Opcode::COUNT_AND_FILL: return count_and_fill(unit, frame);
    case Opcode::REDUCE_AND_FILL: return reduce_and_fill(unit, frame);
    case Opcode::FILL_OUTSIDE: return fill_outside(unit, frame);
    case Opcode::DRAW: return draw(unit, frame);
    case Opcode::QUANTIZE: return quantize(unit, frame);
    case Opcode::DEQUANTIZE: return dequantize(unit, frame);
    case Opcode::REDUCE_QUANTIZED: return reduce_quantized(unit, frame);
    case Opcode::RESCALE: return rescale(unit, frame);
    case Opcode::QUANTIZE_WEIGHT: return quantize_weight(unit, frame);
    case Opcode::WIDEN_WEIGHT: return widen_weight(unit, frame);
    case Opcode::GATHER: return gather(unit, frame);
    case Opcode::NOTIFY: return;  // only signals
    default: return unit.refuse();
  }
}

// A task of an AIV; BAD_IMAGE where it asks for what has no body here.
__aicore__ inline Code begin_task(VectorUnit&, const Frame&) { return Code::OK; }
__aicore__ inline Code run_task(VectorUnit& unit, const Frame& frame) {
  const bool is_empty = frame.unit.rows == 0 && static_cast<Domain>(frame.op.domain) != Domain::EXPERTS;
  if (is_empty && !is_put(opcode_of(frame.op))) return Code::OK;
  run_body(unit, frame);
  return unit.code();
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

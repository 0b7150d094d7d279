// The tile bodies of an NPU's vector units.
// Written by `python -m hpmoe.kernels.schema`; a test holds it equal to the definitions.
// clang-format off
#pragma once

#include "ascendc/axis_bodies.h"
#include "ascendc/column_bodies.h"
#include "ascendc/draw_body.h"
#include "ascendc/drop_bodies.h"
#include "ascendc/fan_bodies.h"
#include "ascendc/guard_bodies.h"
#include "ascendc/integer_bodies.h"
#include "ascendc/norm_bodies.h"
#include "ascendc/quantized_bodies.h"
#include "ascendc/quantized_sums.h"
#include "ascendc/reduce_bodies.h"
#include "ascendc/relay_body.h"
#include "ascendc/row_sort.h"
#include "ascendc/swiglu_bodies.h"
#include "ascendc/take_body.h"
#include "ascendc/transfer_body.h"
#include "ascendc/weight_bodies.h"

namespace hpmoe {

__aicore__ inline void call_body(VectorUnit& unit, const Frame& frame) {
  switch (opcode_of(frame.op)) {
    case Opcode::PUT: return put(unit, frame);
    case Opcode::PUT_BACK: return put_back(unit, frame);
    case Opcode::REDUCE: return reduce(unit, frame);
    case Opcode::MAP: return map(unit, frame);
    case Opcode::SWIGLU: return swiglu(unit, frame);
    case Opcode::SWIGLU_GRAD: return swiglu_grad(unit, frame);
    case Opcode::ROW_DOT: return row_dot(unit, frame);
    case Opcode::NOTIFY: return;
    case Opcode::KEEP: return keep(unit, frame);
#ifndef HPMOE_ONLY_MOE_FFN
    case Opcode::ROW_REDUCE: return row_reduce(unit, frame);
    case Opcode::COL_SUM: return col_sum(unit, frame);
    case Opcode::GATHER: return gather(unit, frame);
    case Opcode::DROP_COUNTS: return drop_counts(unit, frame);
    case Opcode::REPLICATE: return replicate(unit, frame);
    case Opcode::RETURN_GRADS: return return_grads(unit, frame);
    case Opcode::FAN_OUT: return fan_out(unit, frame);
    case Opcode::FAN_IN: return fan_in(unit, frame);
    case Opcode::TOP_K: return top_k(unit, frame);
    case Opcode::TAKE_COLS: return take_cols(unit, frame);
    case Opcode::ADD_COLS: return add_cols(unit, frame);
    case Opcode::CUMSUM: return cumsum(unit, frame);
    case Opcode::DRAW: return draw(unit, frame);
    case Opcode::PICK: return pick(unit, frame);
    case Opcode::PLACE: return place(unit, frame);
    case Opcode::GROUP_REDUCE: return group_reduce(unit, frame);
    case Opcode::FILL_OUTSIDE: return fill_outside(unit, frame);
    case Opcode::COUNT_OUTSIDE: return count_outside(unit, frame);
    case Opcode::QUANTIZE: return quantize(unit, frame);
    case Opcode::DEQUANTIZE: return dequantize(unit, frame);
    case Opcode::REDUCE_QUANTIZED: return reduce_quantized(unit, frame);
    case Opcode::COUNT_AND_FILL: return count_and_fill(unit, frame);
    case Opcode::REDUCE_AND_FILL: return reduce_and_fill(unit, frame);
    case Opcode::RELAY_SUM: return relay_sum(unit, frame);
    case Opcode::RESCALE: return rescale(unit, frame);
    case Opcode::QUANTIZE_WEIGHT: return quantize_weight(unit, frame);
    case Opcode::DEQUANTIZE_WEIGHT: return dequantize_weight(unit, frame);
    case Opcode::RMS_NORM: return rms_norm(unit, frame);
    case Opcode::RMS_NORM_GRAD: return rms_norm_grad(unit, frame);
#endif
    default: return unit.refuse();
  }
}

}  // namespace hpmoe

#include "bodies.h"

namespace hpmoe {

Code run_body(const Frame& frame) {
  const bool has_unit = frame.unit.rows > 0 || static_cast<Domain>(frame.op.domain) == Domain::EXPERTS;
  if (!has_unit) return Code::OK;
  switch (opcode_of(frame.op)) {
    case Opcode::REDUCE: return reduce(frame);
    case Opcode::GMM: return gmm(frame);
    case Opcode::WGRAD: return wgrad(frame);
    case Opcode::MAP: return map(frame);
    case Opcode::SWIGLU: return swiglu(frame);
    case Opcode::SWIGLU_GRAD: return swiglu_grad(frame);
    case Opcode::ROW_REDUCE: return row_reduce(frame);
    case Opcode::ROW_DOT: return row_dot(frame);
    case Opcode::COL_SUM: return col_sum(frame);
    case Opcode::GATHER: return gather(frame);
    case Opcode::PICK: return pick(frame);
    case Opcode::PLACE: return place(frame);
    case Opcode::GROUP_REDUCE: return group_reduce(frame);
    case Opcode::FAN_OUT: return fan_out(frame);
    case Opcode::FAN_IN: return fan_in(frame);
    case Opcode::RELAY_SUM: return relay_sum(frame);
    case Opcode::KEEP: return keep(frame);
    case Opcode::DROP_COUNTS: return drop_counts(frame);
    case Opcode::TOP_K: return top_k(frame);
    case Opcode::TAKE_COLS: return take_cols(frame);
    case Opcode::ADD_COLS: return add_cols(frame);
    case Opcode::CUMSUM: return cumsum(frame);
    case Opcode::FILL_OUTSIDE: return fill_outside(frame);
    case Opcode::COUNT_OUTSIDE: return count_outside(frame);
    case Opcode::COUNT_AND_FILL: return count_and_fill(frame);
    case Opcode::REDUCE_AND_FILL: return reduce_and_fill(frame);
    case Opcode::QUANTIZE: return quantize(frame);
    case Opcode::DEQUANTIZE: return dequantize(frame);
    case Opcode::REDUCE_QUANTIZED: return reduce_quantized(frame);
    case Opcode::QUANTIZE_WEIGHT: return quantize_weight(frame);
    case Opcode::GMM_INT8: return gmm_int8(frame);
    case Opcode::GMM_FP8: return gmm_fp8(frame);
    case Opcode::GMM_WIDENED: return gmm_widened(frame);
    case Opcode::WIDEN_WEIGHT: return widen_weight(frame);
    case Opcode::RESCALE: return rescale(frame);
    case Opcode::DRAW: return draw(frame);
    case Opcode::LAUNCH: return Code::OK;
    default: return Code::BAD_IMAGE;
  }
}

}  // namespace hpmoe

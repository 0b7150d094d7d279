// The tile bodies of the CPU.
// Written by `python -m hpmoe.kernels.schema`; a test holds it equal to the definitions.
// clang-format off
#pragma once

#include "cpu/frame.h"

namespace hpmoe {

Code reduce(const Frame& frame);
Code gmm(const Frame& frame);
Code wgrad(const Frame& frame);
Code map(const Frame& frame);
Code swiglu(const Frame& frame);
Code swiglu_grad(const Frame& frame);
Code row_reduce(const Frame& frame);
Code row_dot(const Frame& frame);
Code col_sum(const Frame& frame);
Code gather(const Frame& frame);
Code keep(const Frame& frame);
Code drop_counts(const Frame& frame);
Code fan_out(const Frame& frame);
Code fan_in(const Frame& frame);
Code top_k(const Frame& frame);
Code take_cols(const Frame& frame);
Code add_cols(const Frame& frame);
Code cumsum(const Frame& frame);
Code draw(const Frame& frame);
Code pick(const Frame& frame);
Code place(const Frame& frame);
Code group_reduce(const Frame& frame);
Code fill_outside(const Frame& frame);
Code count_outside(const Frame& frame);
Code quantize(const Frame& frame);
Code dequantize(const Frame& frame);
Code reduce_quantized(const Frame& frame);
Code count_and_fill(const Frame& frame);
Code reduce_and_fill(const Frame& frame);
Code relay_sum(const Frame& frame);
Code gmm_int8(const Frame& frame);
Code rescale(const Frame& frame);
Code gmm_dequantized(const Frame& frame);
Code quantize_weight(const Frame& frame);
Code dequantize_weight(const Frame& frame);
Code gmm_fp8(const Frame& frame);
Code rms_norm(const Frame& frame);
Code rms_norm_grad(const Frame& frame);

inline Code call_body(const Frame& frame) {
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
    case Opcode::KEEP: return keep(frame);
    case Opcode::DROP_COUNTS: return drop_counts(frame);
    case Opcode::LAUNCH: return Code::OK;
    case Opcode::FAN_OUT: return fan_out(frame);
    case Opcode::FAN_IN: return fan_in(frame);
    case Opcode::TOP_K: return top_k(frame);
    case Opcode::TAKE_COLS: return take_cols(frame);
    case Opcode::ADD_COLS: return add_cols(frame);
    case Opcode::CUMSUM: return cumsum(frame);
    case Opcode::DRAW: return draw(frame);
    case Opcode::PICK: return pick(frame);
    case Opcode::PLACE: return place(frame);
    case Opcode::GROUP_REDUCE: return group_reduce(frame);
    case Opcode::FILL_OUTSIDE: return fill_outside(frame);
    case Opcode::COUNT_OUTSIDE: return count_outside(frame);
    case Opcode::QUANTIZE: return quantize(frame);
    case Opcode::DEQUANTIZE: return dequantize(frame);
    case Opcode::REDUCE_QUANTIZED: return reduce_quantized(frame);
    case Opcode::COUNT_AND_FILL: return count_and_fill(frame);
    case Opcode::REDUCE_AND_FILL: return reduce_and_fill(frame);
    case Opcode::RELAY_SUM: return relay_sum(frame);
    case Opcode::GMM_INT8: return gmm_int8(frame);
    case Opcode::RESCALE: return rescale(frame);
    case Opcode::GMM_DEQUANTIZED: return gmm_dequantized(frame);
    case Opcode::QUANTIZE_WEIGHT: return quantize_weight(frame);
    case Opcode::DEQUANTIZE_WEIGHT: return dequantize_weight(frame);
    case Opcode::GMM_FP8: return gmm_fp8(frame);
    case Opcode::RMS_NORM: return rms_norm(frame);
    case Opcode::RMS_NORM_GRAD: return rms_norm_grad(frame);
    default: return Code::BAD_IMAGE;
  }
}

}  // namespace hpmoe

// The tile bodies of an NPU's matrix units.
// Written by `python -m hpmoe.kernels.schema`; a test holds it equal to the definitions.
// clang-format off
#pragma once

#include "ascendc/matmul_bodies.h"

namespace hpmoe {

__aicore__ inline Product product_of(const Frame& frame) {
  switch (opcode_of(frame.op)) {
    case Opcode::GMM: return gmm(frame);
    case Opcode::WGRAD: return wgrad(frame);
#ifndef HPMOE_ONLY_MOE_FFN
    case Opcode::GMM_INT8: return gmm_int8(frame);
    case Opcode::GMM_FP8: return gmm_fp8(frame);
#endif
    default: return refused_product();
  }
}

}  // namespace hpmoe

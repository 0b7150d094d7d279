// Vector instructions on whose results the next vector instructions may depend: each is followed by a barrier.
#pragma once

#include "device.h"

namespace hpmoe::in_order {

#define HPMOE_IN_ORDER(name)                                 \
  template <class... Operands>                               \
  __aicore__ inline void name(const Operands&... operands) { \
    AscendC::name(operands...);                              \
    AscendC::PipeBarrier<PIPE_V>();                          \
  }
HPMOE_IN_ORDER(Abs)
HPMOE_IN_ORDER(Add)
HPMOE_IN_ORDER(Adds)
HPMOE_IN_ORDER(And)
HPMOE_IN_ORDER(Axpy)
HPMOE_IN_ORDER(Cast)
HPMOE_IN_ORDER(Compare)
HPMOE_IN_ORDER(Compares)
HPMOE_IN_ORDER(CreateVecIndex)
HPMOE_IN_ORDER(DataCopy)
HPMOE_IN_ORDER(Div)
HPMOE_IN_ORDER(Duplicate)
HPMOE_IN_ORDER(Exp)
HPMOE_IN_ORDER(Gather)
HPMOE_IN_ORDER(Ln)
HPMOE_IN_ORDER(Max)
HPMOE_IN_ORDER(Maxs)
HPMOE_IN_ORDER(Mins)
HPMOE_IN_ORDER(Mul)
HPMOE_IN_ORDER(Muls)
HPMOE_IN_ORDER(Or)
HPMOE_IN_ORDER(ReduceMax)
HPMOE_IN_ORDER(ReduceSum)
HPMOE_IN_ORDER(Select)
HPMOE_IN_ORDER(ShiftRight)
HPMOE_IN_ORDER(Sort32)
HPMOE_IN_ORDER(Sqrt)
HPMOE_IN_ORDER(Sub)
#undef HPMOE_IN_ORDER

}  // namespace hpmoe::in_order

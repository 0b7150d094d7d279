// SwiGLU and its gradient: silu(gate) * up, the two halves of one array.
#pragma once

#include "vector_unit.h"

namespace hpmoe {

// Computes x = 1 + exp(-gate).
__aicore__ inline void one_plus_exp(const Floats& x, const Floats& gate, int32_t count) {
  in_order::Muls(x, gate, -1.0f, count);
  in_order::Exp(x, x, count);
  in_order::Adds(x, x, 1.0f, count);
}

struct Swiglu : OfFloats {
  Rows2d out;

  __aicore__ inline void compute(const Piece& piece) {
    const int32_t count = piece.count();
    const Floats g = unit.floats(0), u = unit.floats(1), x = unit.floats(2);
    one_plus_exp(x, g, count);
    in_order::Div(g, g, x, count);
    in_order::Mul(g, g, u, count);
    unit.write(out, piece, g, count);
  }
};

__aicore__ inline void swiglu(VectorUnit& unit, const Frame& frame) {
  Swiglu body{{unit, 2, {frame.rows(1), frame.rows(2)}}, frame.rows(0)};
  const int32_t bytes = body.widest(element_bytes(body.out.dtype));
  run_pieces(unit, Pieces(frame.unit.rows, frame.task.cols, piece_elements(bytes)), body);
}

// Computes, with s = sigmoid(gate): dup = dy gate s, dgate = dy up (s + gate s (1 - s)).
struct SwigluGrad : OfFloats {
  Rows2d dgate, dup;

  __aicore__ inline void compute(const Piece& piece) {
    const int32_t count = piece.count();
    const Floats d = unit.floats(0), g = unit.floats(1), u = unit.floats(2), s = unit.floats(3), x = unit.floats(4);
    one_plus_exp(s, g, count);
    AscendC::Div(g, g, s, count);  // silu
    AscendC::Duplicate(x, 1.0f, count);
    AscendC::Mul(u, u, d, count);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Div(s, x, s, count);  // sigmoid
    AscendC::Mul(d, d, g, count);  // dup
    AscendC::PipeBarrier<PIPE_V>();
    in_order::Mul(x, g, s, count);
    in_order::Sub(x, g, x, count);
    in_order::Add(x, x, s, count);
    in_order::Mul(u, u, x, count);  // dgate
    unit.write(dgate, piece, u, count);
    unit.write(dup, piece, d, count);
  }
};

__aicore__ inline void swiglu_grad(VectorUnit& unit, const Frame& frame) {
  SwigluGrad body{{unit, 3, {frame.rows(2), frame.rows(3), frame.rows(4)}}, frame.rows(0), frame.rows(1)};
  const int32_t bytes = body.widest(most(element_bytes(body.dgate.dtype), element_bytes(body.dup.dtype)));
  run_pieces(unit, Pieces(frame.unit.rows, frame.task.cols, piece_elements(bytes)), body);
}

}  // namespace hpmoe

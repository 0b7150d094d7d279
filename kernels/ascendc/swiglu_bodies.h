// SwiGLU and its gradient: silu(gate) * up, the two halves of one array.
#pragma once

#include "vector_unit.h"

namespace hpmoe {

// Computes x = 1 + exp(-gate).
__aicore__ inline void one_plus_exp(const Floats& x, const Floats& gate, int32_t count) {
  AscendC::Muls(x, gate, -1.0f, count);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Exp(x, x, count);
  AscendC::PipeBarrier<PIPE_V>();
  AscendC::Adds(x, x, 1.0f, count);
  AscendC::PipeBarrier<PIPE_V>();
}

struct Swiglu {
  VectorUnit& unit;
  Rows2d out, gate, up;

  __aicore__ inline int32_t widest() const {
    return most(element_bytes(out.dtype), most(element_bytes(gate.dtype), element_bytes(up.dtype)));
  }
  __aicore__ inline void load(const Bytes& in, const Piece& piece) {
    unit.load(in, 0, gate, piece);
    unit.load(in, 1, up, piece);
  }
  __aicore__ inline void widen(const Bytes& in, const Piece& piece) {
    unit.widen(unit.floats(0), in, 0, gate.dtype, piece.count());
    unit.widen(unit.floats(1), in, 1, up.dtype, piece.count());
  }
  __aicore__ inline void compute(const Piece& piece) {
    const int32_t count = piece.count();
    const Floats g = unit.floats(0), u = unit.floats(1), x = unit.floats(2);
    one_plus_exp(x, g, count);
    AscendC::Div(g, g, x, count);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Mul(g, g, u, count);
    AscendC::PipeBarrier<PIPE_V>();
    unit.write(out, piece, g, count);
  }
};

__aicore__ inline void swiglu(VectorUnit& unit, const Frame& frame) {
  Swiglu body{unit, frame.rows(0), frame.rows(1), frame.rows(2)};
  run_pieces(unit, Pieces(frame.unit.rows, frame.task.cols, piece_elements(body.widest())), body);
}

// Computes, with s = sigmoid(gate): dup = dy gate s, dgate = dy up (s + gate s (1 - s)).
struct SwigluGrad {
  VectorUnit& unit;
  Rows2d dgate, dup, dy, gate, up;

  __aicore__ inline int32_t widest() const {
    const int32_t of_inputs = most(element_bytes(dy.dtype), most(element_bytes(gate.dtype), element_bytes(up.dtype)));
    return most(of_inputs, most(element_bytes(dgate.dtype), element_bytes(dup.dtype)));
  }
  __aicore__ inline void load(const Bytes& in, const Piece& piece) {
    unit.load(in, 0, dy, piece);
    unit.load(in, 1, gate, piece);
    unit.load(in, 2, up, piece);
  }
  __aicore__ inline void widen(const Bytes& in, const Piece& piece) {
    unit.widen(unit.floats(0), in, 0, dy.dtype, piece.count());
    unit.widen(unit.floats(1), in, 1, gate.dtype, piece.count());
    unit.widen(unit.floats(2), in, 2, up.dtype, piece.count());
  }
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
    AscendC::Mul(x, g, s, count);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Sub(x, g, x, count);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Add(x, x, s, count);
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Mul(u, u, x, count);  // dgate
    AscendC::PipeBarrier<PIPE_V>();
    unit.write(dgate, piece, u, count);
    unit.write(dup, piece, d, count);
  }
};

__aicore__ inline void swiglu_grad(VectorUnit& unit, const Frame& frame) {
  SwigluGrad body{unit, frame.rows(0), frame.rows(1), frame.rows(2), frame.rows(3), frame.rows(4)};
  run_pieces(unit, Pieces(frame.unit.rows, frame.task.cols, piece_elements(body.widest())), body);
}

}  // namespace hpmoe

// Elementwise tiles. A copy between dtypes is the cast.
#pragma once

#include "swiglu_bodies.h"

namespace hpmoe {

// a = code(a); x is free to use.
__aicore__ inline void map_one(MapCode code, const Floats& a, const Floats& x, int32_t count) {
  switch (code) {
    case MapCode::NEG: return AscendC::Muls(a, a, -1.0f, count);
    case MapCode::EXP: return AscendC::Exp(a, a, count);
    case MapCode::LOG: return AscendC::Ln(a, a, count);
    case MapCode::SQRT: return AscendC::Sqrt(a, a, count);
    case MapCode::ABS: return AscendC::Abs(a, a, count);
    case MapCode::SQUARE: return AscendC::Mul(a, a, a, count);
    case MapCode::SILU:
      one_plus_exp(x, a, count);
      return AscendC::Div(a, a, x, count);
    case MapCode::SIGMOID:
      one_plus_exp(x, a, count);
      AscendC::Duplicate(a, 1.0f, count);
      AscendC::PipeBarrier<PIPE_V>();
      return AscendC::Div(a, a, x, count);
    case MapCode::RECIPROCAL:
      AscendC::Duplicate(x, 1.0f, count);
      AscendC::PipeBarrier<PIPE_V>();
      return AscendC::Div(a, x, a, count);
    case MapCode::RELU:
      AscendC::Duplicate(x, 0.0f, count);
      AscendC::PipeBarrier<PIPE_V>();
      return AscendC::Max(a, a, x, count);
    default: return;  // COPY and FILL
  }
}

// a = code(a, b)
__aicore__ inline void map_two(MapCode code, const Floats& a, const Floats& b, int32_t count) {
  switch (code) {
    case MapCode::ADD: return AscendC::Add(a, a, b, count);
    case MapCode::SUB: return AscendC::Sub(a, a, b, count);
    case MapCode::MUL: return AscendC::Mul(a, a, b, count);
    case MapCode::DIV: return AscendC::Div(a, a, b, count);
    case MapCode::MAXIMUM: return AscendC::Max(a, a, b, count);
    default: return AscendC::Min(a, a, b, count);
  }
}

// An input as float32 for every element of a piece: a number everywhere, a column spread over its rows, or as it is.
__aicore__ inline void spread(VectorUnit& unit, const Frame& frame, int32_t i, const Bytes& in, const Piece& piece,
                              const Floats& to, const Floats& column) {
  if (frame.op.operands[i].buffer < 0) return AscendC::Duplicate(to, frame.op.operands[i].value, piece.count());
  const Rows2d from = frame.rows(i);
  if (!from.is_column) return unit.widen(to, in, i - 1, from.dtype, piece.count());
  unit.widen(column, in, i - 1, from.dtype, piece.num_rows * kLane);
  unit.wait_for_results();
  for (int32_t r = 0; r < piece.num_rows; ++r)
    AscendC::Duplicate(to[r * piece.pitch], column.GetValue(r * kLane), piece.pitch);
}

__aicore__ inline void map(VectorUnit& unit, const Frame& frame) {
  const auto code = static_cast<MapCode>(frame.op.param[0]);
  const int32_t num_inputs = frame.op.num_operands - 1;
  const Rows2d out = frame.rows(0);
  int32_t widest = element_bytes(out.dtype);
  for (int32_t i = 1; i <= num_inputs; ++i)
    if (frame.op.operands[i].buffer >= 0) widest = most(widest, element_bytes(frame.buffer(i).dtype));
  for (Pieces pieces(frame.unit.rows, frame.task.cols, piece_elements(widest)); !pieces.is_done();) {
    const Piece piece = pieces.next();
    Bytes in = unit.inputs.AllocTensor<uint8_t>();
    for (int32_t i = 1; i <= num_inputs; ++i)
      if (frame.op.operands[i].buffer >= 0) unit.load(in, i - 1, frame.rows(i), piece);
    unit.inputs.EnQue(in);
    in = unit.inputs.DeQue<uint8_t>();
    const Floats a = unit.floats(0), b = unit.floats(1);
    spread(unit, frame, 1, in, piece, a, unit.floats(2));
    if (num_inputs > 1) spread(unit, frame, 2, in, piece, b, unit.floats(3));
    unit.inputs.FreeTensor(in);
    AscendC::PipeBarrier<PIPE_V>();
    if (num_inputs > 1) {
      map_two(code, a, b, piece.count());
    } else {
      map_one(code, a, unit.floats(4), piece.count());
    }
    AscendC::PipeBarrier<PIPE_V>();
    unit.write(out, piece, a, piece.count());
  }
}

}  // namespace hpmoe

// Elementwise bodies. A copy between dtypes is a cast.
#pragma once

#include "map_functions.h"

namespace hpmoe {

// Computes a = code(a); overwrites x, y, z and w.
__aicore__ inline void map_one(VectorUnit& unit, MapCode code, const Floats& a, const Floats& x, const Floats& y,
                               const Floats& z, const Floats& w, int32_t count) {
  switch (code) {
    case MapCode::ERF: return erf(a, x, y, count);
    case MapCode::SIN: return sine(a, 0.0f, x, y, z, count);
    case MapCode::COS: return sine(a, 0.5f, x, y, z, count);
    case MapCode::SIGN: return sign(unit.mask(), a, x, y, z, count);
    case MapCode::SOFTPLUS: return softplus(unit.mask(), a, x, y, z, w, count);
    case MapCode::FLOOR: return floor(a, a, count);
    case MapCode::ROUND: return AscendC::Cast(a, a, AscendC::RoundMode::CAST_RINT, count);
    case MapCode::NEG: return AscendC::Muls(a, a, -1.0f, count);
    case MapCode::EXP: return AscendC::Exp(a, a, count);
    case MapCode::LOG: return AscendC::Ln(a, a, count);
    case MapCode::SQRT: return AscendC::Sqrt(a, a, count);
    case MapCode::ABS: return AscendC::Abs(a, a, count);
    case MapCode::SQUARE: return AscendC::Mul(a, a, a, count);
    case MapCode::SILU: one_plus_exp(x, a, count); return AscendC::Div(a, a, x, count);
    case MapCode::SIGMOID:
      one_plus_exp(x, a, count);
      in_order::Duplicate(a, 1.0f, count);
      return AscendC::Div(a, a, x, count);
    case MapCode::TANH:  // 1 - 2 / (1 + exp(2 a))
      in_order::Muls(a, a, -2.0f, count);
      one_plus_exp(x, a, count);
      in_order::Duplicate(a, -2.0f, count);
      in_order::Div(a, a, x, count);
      return AscendC::Adds(a, a, 1.0f, count);
    case MapCode::RSQRT:
      AscendC::Sqrt(a, a, count);
      AscendC::Duplicate(x, 1.0f, count);
      AscendC::PipeBarrier<PIPE_V>();
      return AscendC::Div(a, x, a, count);
    case MapCode::RECIPROCAL: in_order::Duplicate(x, 1.0f, count); return AscendC::Div(a, x, a, count);
    case MapCode::RELU: in_order::Duplicate(x, 0.0f, count); return AscendC::Max(a, a, x, count);
    case MapCode::COPY: return;
    default: return unit.refuse();
  }
}

// Computes a = code(a, b); overwrites x, y and z.
__aicore__ inline void map_two(VectorUnit& unit, MapCode code, const Floats& a, const Floats& b, const Floats& x,
                               const Floats& y, const Floats& z, int32_t count) {
  switch (code) {
    case MapCode::ADD: return AscendC::Add(a, a, b, count);
    case MapCode::SUB: return AscendC::Sub(a, a, b, count);
    case MapCode::MUL: return AscendC::Mul(a, a, b, count);
    case MapCode::DIV: return AscendC::Div(a, a, b, count);
    case MapCode::MAXIMUM: return AscendC::Max(a, a, b, count);
    case MapCode::MINIMUM: return AscendC::Min(a, a, b, count);
    case MapCode::POW: return power(unit.mask(), a, b, x, y, z, count);
    case MapCode::GREATER: return compare(unit.mask(), AscendC::CMPMODE::GT, a, b, x, y, count);
    case MapCode::GREATER_EQUAL: return compare(unit.mask(), AscendC::CMPMODE::GE, a, b, x, y, count);
    case MapCode::LESS: return compare(unit.mask(), AscendC::CMPMODE::LT, a, b, x, y, count);
    case MapCode::LESS_EQUAL: return compare(unit.mask(), AscendC::CMPMODE::LE, a, b, x, y, count);
    case MapCode::EQUAL: return compare(unit.mask(), AscendC::CMPMODE::EQ, a, b, x, y, count);
    case MapCode::NOT_EQUAL: return compare(unit.mask(), AscendC::CMPMODE::NE, a, b, x, y, count);
    default: return unit.refuse();
  }
}

struct Map {
  VectorUnit& unit;
  MapCode code;
  int32_t num_inputs;
  Rows2d out, inputs[kMaxInputs];
  bool is_number[kMaxInputs];
  float number[kMaxInputs];

  __aicore__ inline int32_t widest() const {
    int32_t bytes = element_bytes(out.dtype);
    for (int32_t i = 0; i < num_inputs; ++i)
      if (!is_number[i]) bytes = most(bytes, element_bytes(inputs[i].dtype));
    return bytes;
  }
  __aicore__ inline void load(const Bytes& in, const Piece& piece) {
    for (int32_t i = 0; i < num_inputs; ++i)
      if (!is_number[i]) unit.load(in, i, inputs[i], is_row(i) ? first_row_of(piece) : piece);
  }
  __aicore__ inline void widen(const Bytes& in, const Piece& piece) {
    for (int32_t i = 0; i < num_inputs; ++i) spread(in, piece, i, unit.floats(i), unit.floats(2 + i));
  }
  // Expands an input to every element of a piece: a number, a column over its rows, a row over all rows, or the piece
  // itself. `narrow` holds the column or the row.
  __aicore__ inline void spread(const Bytes& in, const Piece& piece, int32_t i, const Floats& to, const Floats& narrow) {
    if (is_number[i]) return AscendC::Duplicate(to, number[i], piece.count());
    const int32_t dtype = inputs[i].dtype;
    if (!inputs[i].is_column && !is_row(i)) return unit.widen(to, in, i, dtype, piece.count());
    unit.widen(narrow, in, i, dtype, inputs[i].is_column ? (is_row(i) ? 1 : piece.num_rows) * kLane : piece.pitch);
    if (!inputs[i].is_column) {
      AscendC::PipeBarrier<PIPE_V>();
      for (int32_t r = 0; r < piece.num_rows; ++r) AscendC::Muls(to[r * piece.pitch], narrow, 1.0f, piece.pitch);
    } else {
      unit.wait_for_results();
      for (int32_t r = 0; r < piece.num_rows; ++r)
        AscendC::Duplicate(to[r * piece.pitch], narrow.GetValue(is_row(i) ? 0 : r * kLane), piece.pitch);
    }
    AscendC::PipeBarrier<PIPE_V>();
  }
  // Returns true if one row serves all rows.
  __aicore__ inline bool is_row(int32_t i) const { return inputs[i].row_bytes == 0; }
  __aicore__ inline static Piece first_row_of(const Piece& piece) { return {0, piece.col, 1, piece.num_cols, piece.pitch}; }
  __aicore__ inline void compute(const Piece& piece) {
    const Floats a = unit.floats(0), b = unit.floats(1), c = unit.floats(2), x = unit.floats(3), y = unit.floats(4);
    switch (num_inputs) {
      case 1: map_one(unit, code, a, x, y, b, c, piece.count()); break;
      case 2: map_two(unit, code, a, b, x, y, c, piece.count()); break;
      default: code == MapCode::SELECT ? select(unit.mask(), a, b, c, x, piece.count()) : unit.refuse();
    }
    AscendC::PipeBarrier<PIPE_V>();
    unit.write(out, piece, a, piece.count());
  }
};

__aicore__ inline Map map_of(VectorUnit& unit, const Frame& frame) {
  Map body{unit, params::Elementwise::of(frame.op).function, frame.op.num_operands - 1, frame.rows(0), {}, {}, {}};
  for (int32_t i = 0; i < body.num_inputs; ++i) {
    const Operand& operand = frame.op.operands[1 + i];
    body.is_number[i] = operand.buffer < 0;
    body.number[i] = operand.value;
    if (operand.buffer >= 0) body.inputs[i] = frame.rows(1 + i);
  }
  return body;
}

}  // namespace hpmoe

// Access to single elements of UB by the scalar unit: float32, or integers in 64 bits.
//
// The vector unit has no 64-bit arithmetic, no integer division and no scatter-add. Routers have a few such numbers for
// each token. An element costs about ten cycles, in which vector instructions process 640 elements.
#pragma once

#include "core/integer_functions.h"
#include "float_remainder.h"
#include "vector_unit.h"

namespace hpmoe {

constexpr int64_t kLeastInt32 = -2147483647 - 1;

// Returns a float truncated to an integer, and the least integer for NaN and out of range.
__aicore__ inline int64_t truncated(float value) {
  constexpr float kEnd = 9223372036854775808.0f;
  return value >= -kEnd && value < kEnd ? static_cast<int64_t>(value) : -9223372036854775807 - 1;
}

__aicore__ inline bool is_integer(int32_t dtype) { return is_integer(static_cast<Dtype>(dtype)); }

// Elements in the operand's dtype, except halves, which are float32: the formats of widen() and narrow() of VectorUnit.
struct Scalars {
  Floats at;
  int32_t dtype;

  __aicore__ inline int64_t integer(int32_t i) const {
    switch (static_cast<Dtype>(dtype)) {
      case Dtype::INT32: return at.ReinterpretCast<int32_t>().GetValue(i);
      case Dtype::INT64: return at.ReinterpretCast<int64_t>().GetValue(i);
      default: return truncated(at.GetValue(i));
    }
  }
  __aicore__ inline void set_integer(int32_t i, int64_t value) const {
    switch (static_cast<Dtype>(dtype)) {
      case Dtype::INT32: return at.ReinterpretCast<int32_t>().SetValue(i, static_cast<int32_t>(value));
      case Dtype::INT64: return at.ReinterpretCast<int64_t>().SetValue(i, value);
      default: return at.SetValue(i, static_cast<float>(value));
    }
  }
  __aicore__ inline float number(int32_t i) const { return at.GetValue(i); }
  __aicore__ inline void set_number(int32_t i, float value) const { at.SetValue(i, value); }
};

// Base of bodies that read the elements of one operand in floats(0): halves as float32, other dtypes as they are.
struct OfOneOperand {
  VectorUnit& unit;
  Rows2d out, in;

  __aicore__ inline void load(const Bytes& loaded, const Piece& piece) { unit.load(loaded, 0, in, piece); }
  __aicore__ inline void widen(const Bytes& loaded, const Piece& piece) {
    unit.widen_floats(unit.floats(0), loaded, 0, in.dtype, piece.count());
  }
};

// Writes a piece that the scalar unit has computed.
__aicore__ inline void write_scalars(VectorUnit& unit, const Rows2d& to, const Piece& piece, const Scalars& from,
                                     int32_t count) {
  unit.release_to_vectors();
  unit.write_floats(to, piece, from.at, count);
}

}  // namespace hpmoe

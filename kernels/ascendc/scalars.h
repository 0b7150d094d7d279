// Elements of UB one by one, as the scalar unit sees them: float32, or integers in 64 bits.
//
// A vector core has no 64-bit arithmetic, no division of integers and no place to add up by an index. Routers have a few
// such numbers for each token; an element costs about ten cycles, in which vector instructions work through 640.
#pragma once

#include "core/integer_functions.h"
#include "float_remainder.h"
#include "vector_unit.h"

namespace hpmoe {

constexpr int64_t kLeastInt32 = -2147483647 - 1;

// The integer that a float is, without what follows the point; the least one where there is none.
__aicore__ inline int64_t truncated(float value) {
  constexpr float kEnd = 9223372036854775808.0f;
  return value >= -kEnd && value < kEnd ? static_cast<int64_t>(value) : -9223372036854775807 - 1;
}

__aicore__ inline bool is_integer(int32_t dtype) { return is_integer(static_cast<Dtype>(dtype)); }

// Of a dtype as an operand is stored in, but float32 for halves: what VectorUnit widens to and narrows from.
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

// What a body does that looks at the elements of one operand: they are in floats(0) as they are stored, halves as float32.
struct OfOneOperand {
  VectorUnit& unit;
  Rows2d out, in;

  __aicore__ inline void load(const Bytes& loaded, const Piece& piece) { unit.load(loaded, 0, in, piece); }
  __aicore__ inline void widen(const Bytes& loaded, const Piece& piece) {
    unit.widen_floats(unit.floats(0), loaded, 0, in.dtype, piece.count());
  }
};

// A piece that the scalar unit has made.
__aicore__ inline void write_scalars(VectorUnit& unit, const Rows2d& to, const Piece& piece, const Scalars& from,
                                     int32_t count) {
  unit.release_to_vectors();
  unit.write_floats(to, piece, from.at, count);
}

}  // namespace hpmoe

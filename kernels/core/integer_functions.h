// Functions of int64 that wrap around on overflow and are equal on every target.
#pragma once

#include <cstdint>

#include "core/generated/rules.h"
#include "core/generated/structs.h"

namespace hpmoe {

HPMOE_DEVICE inline int64_t wrapped(uint64_t value) { return static_cast<int64_t>(value); }

// Returns 0 for a divisor of 0.
HPMOE_DEVICE inline int64_t floor_div(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return wrapped(-static_cast<uint64_t>(a));
  return a / b - (a % b != 0 && (a % b < 0) != (b < 0) ? 1 : 0);
}

// Returns the remainder with the divisor's sign.
HPMOE_DEVICE inline int64_t remainder(int64_t a, int64_t b) {
  return b == 0 || b == -1 ? 0 : wrapped(static_cast<uint64_t>(a) - static_cast<uint64_t>(floor_div(a, b)) * b);
}

// Returns false if integers have no such function.
HPMOE_DEVICE inline bool apply(MapCode code, int64_t a, int64_t b, int64_t c, int64_t& out) {
  const uint64_t ua = a, ub = b;
  switch (code) {
    case MapCode::COPY: return out = a, true;
    case MapCode::NEG: return out = wrapped(-ua), true;
    case MapCode::RELU: return out = a > 0 ? a : 0, true;
    case MapCode::ABS: return out = a < 0 ? wrapped(-ua) : a, true;
    case MapCode::SQUARE: return out = wrapped(ua * ua), true;
    case MapCode::SIGN: return out = (a > 0 ? 1 : 0) - (a < 0 ? 1 : 0), true;
    case MapCode::ADD: return out = wrapped(ua + ub), true;
    case MapCode::SUB: return out = wrapped(ua - ub), true;
    case MapCode::MUL: return out = wrapped(ua * ub), true;
    case MapCode::MAXIMUM: return out = a > b ? a : b, true;
    case MapCode::MINIMUM: return out = a < b ? a : b, true;
    case MapCode::FLOOR_DIV: return out = floor_div(a, b), true;
    case MapCode::REMAINDER: return out = remainder(a, b), true;
    case MapCode::SELECT: return out = a != 0 ? b : c, true;
    case MapCode::GREATER: return out = a > b, true;
    case MapCode::GREATER_EQUAL: return out = a >= b, true;
    case MapCode::LESS: return out = a < b, true;
    case MapCode::LESS_EQUAL: return out = a <= b, true;
    case MapCode::EQUAL: return out = a == b, true;
    case MapCode::NOT_EQUAL: return out = a != b, true;
    default: return false;
  }
}

}  // namespace hpmoe

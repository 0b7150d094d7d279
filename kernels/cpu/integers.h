// Operands as rows of int64: integers are computed in int64 and wrap around when they are stored.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "rows.h"

namespace hpmoe {

// Converts like the processor: NaN and numbers out of range become the least integer.
template <class Int>
Int truncated(float value) {
  constexpr float kEnd = -static_cast<float>(std::numeric_limits<Int>::min());
  return value >= -kEnd && value < kEnd ? static_cast<Int>(value) : std::numeric_limits<Int>::min();
}

// Returns element `col` of a row as an integer; truncates a float.
inline int64_t load_integer(const View& view, int64_t row, int64_t col) {
  const char* const at = view.at(row, col);
  if (view.dtype == Dtype::INT32) return __atomic_load_n(reinterpret_cast<const int32_t*>(at), __ATOMIC_RELAXED);
  if (view.dtype == Dtype::INT64) return __atomic_load_n(reinterpret_cast<const int64_t*>(at), __ATOMIC_RELAXED);
  float value;
  to_float32(view.dtype, at, 1, &value);
  return truncated<int64_t>(value);
}

inline void store_integer(const View& view, int64_t row, int64_t col, int64_t value) {
  char* const at = view.at(row, col);
  if (view.dtype == Dtype::INT32) {
    const int32_t low = static_cast<int32_t>(value);
    std::memcpy(at, &low, sizeof low);
  } else if (view.dtype == Dtype::INT64) {
    std::memcpy(at, &value, sizeof value);
  } else {
    const float rounded = static_cast<float>(value);
    from_float32(view.dtype, &rounded, 1, at);
  }
}

// Returns the column that an index names, from 0 to cols - 1, or -1 if it is out of range. A negative index counts from
// the end.
inline int64_t column_of(const View& index, int64_t row, int64_t k, int64_t cols) {
  const int64_t at = load_integer(index, row, k);
  const int64_t col = at < 0 ? at + cols : at;
  return col >= 0 && col < cols ? col : -1;
}

}  // namespace hpmoe

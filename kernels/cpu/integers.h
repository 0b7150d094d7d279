// Operands as rows of int64, whatever they are stored in: integers are computed in it and wrap around where they are stored.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "rows.h"

namespace hpmoe {

// As the processor's own conversion: the least number where there is none, for what is not a number and what is out of
// range.
template <class Int>
Int truncated(float value) {
  constexpr float kEnd = -static_cast<float>(std::numeric_limits<Int>::min());
  return value >= -kEnd && value < kEnd ? static_cast<Int>(value) : std::numeric_limits<Int>::min();
}

// Element `col` of a row; of a float the integer that it is.
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

// The column that an index names of `cols`, a negative one from the end; -1 where there is none.
inline int64_t column_of(const View& index, int64_t row, int64_t k, int64_t cols) {
  const int64_t at = load_integer(index, row, k);
  const int64_t col = at < 0 ? at + cols : at;
  return col >= 0 && col < cols ? col : -1;
}

}  // namespace hpmoe

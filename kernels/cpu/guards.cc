// Rows with another value where a tested one is NaN or out of range, and how many of a row are.
#include <algorithm>
#include <vector>

#include "bodies.h"
#include "lanes.h"

namespace hpmoe {
namespace {

enum Fill { kZero, kMean, kSpread };

// NaN is in no range.
HPMOE_MULTIVERSION
int64_t count_outside(int64_t n, const float* x, float low, float high) {
  int32_t outside = 0;
  for (int64_t i = 0; i < n; ++i) outside += !(x[i] >= low && x[i] <= high);
  return outside;
}

HPMOE_MULTIVERSION
void replace(int64_t n, const float* x, float low, float high, const float* values, float added, float filled, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] >= low && x[i] <= high ? values[i] + added : filled;
}

// The sum of values where the tested are in range, or where they are not.
float sum_where(bool in_range, const std::vector<float>& tested, float low, float high, const std::vector<float>& values) {
  float sum = 0;
  for (size_t i = 0; i < values.size(); ++i)
    if ((tested[i] >= low && tested[i] <= high) == in_range) sum += values[i];
  return sum;
}

void load(const View& from, int64_t row, std::vector<float>& values) {
  to_float32(from.dtype, from.at(row, 0), values.size(), values.data());
}

}  // namespace

// Rows without anything to replace, nearly all of them, are copied.
Code guard(const Frame& frame) {
  const View out = frame.view(0), counts = frame.view(1), values = frame.view(2), tested = frame.view(3);
  const int64_t cols = frame.num_cols(0);
  const float low = frame.op.operands[4].value, high = frame.op.operands[5].value;
  const auto fill = static_cast<Fill>(frame.op.param[0]);
  const bool is_same = values.data == tested.data;
  std::vector<float> x(cols), other(is_same ? 0 : cols), made(cols);
  for (int64_t row = 0; row < frame.unit.rows; ++row) {
    load(tested, row, x);
    if (!is_same) load(values, row, other);
    const std::vector<float>& given = is_same ? x : other;
    const int64_t outside = count_outside(cols, x.data(), low, high);
    const float count = static_cast<float>(outside);
    from_float32(counts.dtype, &count, 1, counts.at(row, 0));
    if (!outside) {
      from_float32(out.dtype, given.data(), cols, out.at(row, 0));
      continue;
    }
    const float part = fill == kZero ? 0.0f
                                     : sum_where(fill == kMean, x, low, high, given) /
                                           static_cast<float>(std::max<int64_t>(cols - outside, 1));
    replace(cols, x.data(), low, high, given.data(), fill == kSpread ? part : 0.0f, fill == kMean ? part : 0.0f,
            made.data());
    from_float32(out.dtype, made.data(), cols, out.at(row, 0));
  }
  return Code::OK;
}

}  // namespace hpmoe

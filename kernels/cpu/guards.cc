// How many values of a row are NaN or out of a range, and rows with others in their place.
#include <algorithm>
#include <vector>

#include "bodies.h"
#include "lanes.h"

namespace hpmoe {
namespace {

enum Fill { kZero, kMean, kSpread };

// NaN is in no range.
HPMOE_MULTIVERSION
int32_t num_outside(int64_t n, const float* x, float low, float high) {
  int32_t inside = 0;
  for (int64_t i = 0; i < n; ++i) inside += static_cast<int32_t>(x[i] >= low) & static_cast<int32_t>(x[i] <= high);
  return static_cast<int32_t>(n) - inside;
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

Code count_outside(const Frame& frame) {
  Writer counts(frame.view(0));
  Reader tested(frame.view(1));
  const float low = frame.op.operands[2].value, high = frame.op.operands[3].value;
  const int64_t cols = frame.num_cols(1);
  int64_t outside = 0;
  for_each_chunk(frame.unit.rows, cols, [&](int64_t row, int64_t col, int64_t n) {
    if (col == 0) outside = 0;
    outside += num_outside(n, tested.chunk(row, col, n), low, high);
    if (col + n == cols) counts.store_one(row, static_cast<float>(outside));
  });
  return Code::OK;
}

// Rows without anything to replace, nearly all of them, are copied.
Code fill_outside(const Frame& frame) {
  const View out = frame.view(0), values = frame.view(1), tested = frame.view(2), counts = frame.view(3);
  const int64_t cols = frame.num_cols(0);
  const float low = frame.op.operands[4].value, high = frame.op.operands[5].value;
  const auto fill = static_cast<Fill>(frame.op.param[0]);
  std::vector<float> x(cols), given(cols), made(cols);
  for (int64_t row = 0; row < frame.unit.rows; ++row) {
    float outside;
    to_float32(counts.dtype, counts.at(row, 0), 1, &outside);
    if (outside == 0) {
      copy_row(values.dtype, values.at(row, 0), cols, out.dtype, out.at(row, 0));
      continue;
    }
    load(tested, row, x);
    load(values, row, given);
    const float others = std::max(static_cast<float>(cols) - outside, 1.0f);
    const float part = fill == kZero ? 0.0f : sum_where(fill == kMean, x, low, high, given) / others;
    replace(cols, x.data(), low, high, given.data(), fill == kSpread ? part : 0.0f, fill == kMean ? part : 0.0f,
            made.data());
    from_float32(out.dtype, made.data(), cols, out.at(row, 0));
  }
  return Code::OK;
}

}  // namespace hpmoe

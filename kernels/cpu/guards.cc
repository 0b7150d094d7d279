// How many values of a row are NaN or out of a range, and rows with others in their place.
#include <algorithm>
#include <vector>

#include "bits.h"
#include "bodies.h"
#include "entry_sums.h"
#include "lanes.h"

namespace hpmoe {
namespace {

enum Fill { kZero, kMean, kSpread };

// NaN is in no range.
HPMOE_MULTIVERSION
int32_t num_inside(int64_t n, const float* x, float low, float high) {
  int32_t inside = 0;
  for (int64_t i = 0; i < n; ++i) inside += static_cast<int32_t>(x[i] >= low) & static_cast<int32_t>(x[i] <= high);
  return inside;
}

// Of bfloat16: a row passes through registers alone, which is twice as fast as through a chunk of float32.
HPMOE_MULTIVERSION
int32_t num_inside(int64_t n, const uint16_t* x, float low, float high) {
  int32_t inside = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float value = bits_as<float>(static_cast<uint32_t>(x[i]) << 16);
    inside += static_cast<int32_t>(value >= low) & static_cast<int32_t>(value <= high);
  }
  return inside;
}

// How many of the first `cols` values of a row are NaN or out of range.
int64_t num_outside(const View& tested, Reader& reader, int64_t row, int64_t cols, float low, float high) {
  int64_t inside = 0;
  if (tested.dtype == Dtype::BFLOAT16) {
    inside = num_inside(cols, reinterpret_cast<const uint16_t*>(tested.at(row, 0)), low, high);
  } else {
    for_each_chunk(1, cols,
                   [&](int64_t, int64_t col, int64_t n) { inside += num_inside(n, reader.chunk(row, col, n), low, high); });
  }
  return cols - inside;
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

// Fills rows by those that are tested. Rows without anything to replace, nearly all of them, are copied, or left as they
// are.
class Filler {
 public:
  Filler(Fill fill, int64_t cols, float low, float high)
      : fill_(fill), low_(low), high_(high), tested_(cols), values_(cols), made_(cols) {}

  void operator()(const View& out, const View& values, const View& tested, int64_t row, int64_t outside) {
    const auto cols = static_cast<int64_t>(made_.size());
    if (outside == 0) {
      if (out.data != values.data) copy_row(values.dtype, values.at(row, 0), cols, out.dtype, out.at(row, 0));
      return;
    }
    load(tested, row, tested_);
    load(values, row, values_);
    const float others = static_cast<float>(std::max<int64_t>(cols - outside, 1));
    const float part = fill_ == kZero ? 0.0f : sum_where(fill_ == kMean, tested_, low_, high_, values_) / others;
    replace(cols, tested_.data(), low_, high_, values_.data(), fill_ == kSpread ? part : 0.0f, fill_ == kMean ? part : 0.0f,
            made_.data());
    from_float32(out.dtype, made_.data(), cols, out.at(row, 0));
  }

 private:
  const Fill fill_;
  const float low_, high_;
  std::vector<float> tested_, values_, made_;
};

// Operand 0 is made of what is tested, operand 1 counts it, and operands 3 and 4 are the range.
class CountAndFill {
 public:
  CountAndFill(const Frame& frame, int tested)
      : cols_(frame.num_cols(0)),
        low_(frame.op.operands[3].value),
        high_(frame.op.operands[4].value),
        out_(frame.view(0)),
        tested_(frame.view(tested)),
        counts_(frame.view(1)),
        reader_(tested_),
        filler_(static_cast<Fill>(frame.op.param[0]), cols_, low_, high_) {}

  void operator()(int64_t row) {
    const int64_t outside = num_outside(tested_, reader_, row, cols_, low_, high_);
    filler_(out_, tested_, tested_, row, outside);
    counts_.store_one(row, static_cast<float>(outside));
  }

 private:
  const int64_t cols_;
  const float low_, high_;
  const View out_, tested_;
  Writer counts_;
  Reader reader_;
  Filler filler_;
};

}  // namespace

Code count_outside(const Frame& frame) {
  Writer counts(frame.view(0));
  const View tested = frame.view(1);
  Reader reader(tested);
  const float low = frame.op.operands[2].value, high = frame.op.operands[3].value;
  for (int64_t row = 0; row < frame.unit.rows; ++row)
    counts.store_one(row, static_cast<float>(num_outside(tested, reader, row, frame.num_cols(1), low, high)));
  return Code::OK;
}

Code fill_outside(const Frame& frame) {
  const View out = frame.view(0), values = frame.view(1), tested = frame.view(2), counts = frame.view(3);
  const auto fill = static_cast<Fill>(frame.op.param[0]);
  Filler filler(fill, frame.num_cols(0), frame.op.operands[4].value, frame.op.operands[5].value);
  for (int64_t row = 0; row < frame.unit.rows; ++row) {
    float outside;
    to_float32(counts.dtype, counts.at(row, 0), 1, &outside);
    filler(out, values, tested, row, static_cast<int64_t>(outside));
  }
  return Code::OK;
}

Code count_and_fill(const Frame& frame) {
  CountAndFill guard(frame, 2);
  for (int64_t row = 0; row < frame.unit.rows; ++row) guard(row);
  return Code::OK;
}

// The sum of a token's entries is looked at while it is in a cache.
Code reduce_and_fill(const Frame& frame) {
  EntrySums sum(frame, 0, 2, 5);
  CountAndFill guard(frame, 0);
  for (int64_t row = 0; row < frame.unit.rows; ++row) {
    sum(row);
    guard(row);
  }
  return Code::OK;
}

}  // namespace hpmoe

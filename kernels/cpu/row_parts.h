// Divides the rows of tokens into parts: the rows and columns that are summed at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "token_rows.h"

namespace hpmoe {

constexpr int64_t kBlock = 2048;  // columns of a part
constexpr int64_t kTogether = 8;  // most rows of a part

// Rows of one token from a column on. `is_first` and `is_last` mark the first and last part of a sum.
struct Part {
  int64_t token, col, num_cols, num_rows;
  bool is_first, is_last;
  float weights[kTogether];
  const char* rows[kTogether];
};

// Iterates over the parts of tokens first to last - 1. After the last part next() returns a part of no columns.
class PartsOfTokens {
 public:
  PartsOfTokens(const Places& places, const int64_t* first_of, const float* weights, const char* rows, int64_t first,
                int64_t last, int64_t cols, int64_t size)
      : places_(places),
        first_of_(first_of),
        weights_(weights),
        rows_(rows),
        last_(last),
        cols_(cols),
        size_(size),
        token_(first) {
    if (token_ < last_) entry_ = begin();
  }

  Part next() {
    Part part{token_, col_, 0, 0, false, false, {}, {}};
    if (token_ == last_ || cols_ == 0) return part;
    part.num_cols = std::min(kBlock, cols_ - col_);
    part.is_first = entry_ == begin();
    for (; entry_ < end() && part.num_rows < kTogether; ++entry_) {
      const int64_t row = places_.row(entry_);
      if (row < 0) continue;
      part.weights[part.num_rows] = weights_ ? weights_[entry_] : 1.0f;
      part.rows[part.num_rows++] = rows_ + (row * cols_ + col_) * size_;
    }
    part.is_last = entry_ == end();
    if (part.is_last) go_on();
    return part;
  }

 private:
  int64_t begin() const { return first_of_ ? first_of_[token_] : token_ * places_.top_k; }
  int64_t end() const { return first_of_ ? first_of_[token_ + 1] : (token_ + 1) * places_.top_k; }
  void go_on() {
    col_ += kBlock;
    if (col_ >= cols_) {
      col_ = 0;
      ++token_;
    }
    if (token_ < last_) entry_ = begin();
  }

  const Places& places_;
  const int64_t* const first_of_;
  const float* const weights_;
  const char* const rows_;
  const int64_t last_, cols_, size_;
  int64_t token_, col_ = 0, entry_ = 0;
};

}  // namespace hpmoe

// How much of something there was in each of a fixed number of equal spans of a time whose end is not known beforehand.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hpmoe {

// Bin i is about [i * width, (i + 1) * width). The width doubles, and neighbouring bins become one, where time goes on past
// the last; so all that cover the same time have the same width.
class AmountOverTime {
 public:
  explicit AmountOverTime(int32_t num_bins) : bins_(num_bins) {}

  // `amount`, evenly over [from, to].
  void add(double from, double to, double amount) {
    if (to <= from || bins_.empty()) return;
    cover(to);
    const double rate = amount / (to - from);
    for (auto i = static_cast<size_t>(from / width_); i < bins_.size() && from < to; ++i) {
      const double until = std::min(to, static_cast<double>(i + 1) * width_);
      bins_[i] += rate * std::max(0.0, until - from);
      from = std::max(from, until);
    }
  }

  void cover(double end) {
    const size_t half = bins_.size() / 2;
    while (half > 0 && end > static_cast<double>(bins_.size()) * width_) {
      for (size_t i = 0; i < half; ++i) bins_[i] = bins_[2 * i] + bins_[2 * i + 1];
      std::fill(bins_.begin() + static_cast<int64_t>(half), bins_.end(), 0.0);
      width_ *= 2;
    }
  }

  double width() const { return width_; }
  const std::vector<double>& bins() const { return bins_; }

 private:
  double width_ = 1.0 / 16;
  std::vector<double> bins_;  // an even number, or empty if not requested
};

}  // namespace hpmoe

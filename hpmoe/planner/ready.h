// The ready tasks of list scheduling, the most urgent first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace hpmoe {

// Indices of `keys` from the least to the greatest, equal ones in order.
inline std::vector<int32_t> sort_stably(const std::vector<uint64_t>& keys) {
  constexpr int kDigitBits = 11;
  constexpr uint64_t kMask = (1u << kDigitBits) - 1;
  struct Run {
    uint64_t key;
    int32_t first, last;
  };
  const uint64_t least = keys.empty() ? 0 : *std::min_element(keys.begin(), keys.end());
  std::vector<Run> runs, next;  // of equal keys, which many tasks in a row have
  uint64_t most = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i > 0 && keys[i] == keys[i - 1]) {
      ++runs.back().last;
      continue;
    }
    runs.push_back({keys[i] - least, static_cast<int32_t>(i), static_cast<int32_t>(i) + 1});
    most = std::max(most, keys[i] - least);
  }
  next.resize(runs.size());
  for (int shift = 0; shift < 64 && most >> shift != 0; shift += kDigitBits) {
    std::vector<uint32_t> starts(kMask + 2);
    for (const Run& run : runs) ++starts[(run.key >> shift & kMask) + 1];
    for (size_t d = 0; d < kMask; ++d) starts[d + 1] += starts[d];
    for (const Run& run : runs) next[starts[run.key >> shift & kMask]++] = run;
    runs.swap(next);
  }
  std::vector<int32_t> order;
  order.reserve(keys.size());
  for (const Run& run : runs)
    for (int32_t i = run.first; i < run.last; ++i) order.push_back(i);
  return order;
}

// A number whose order is that of the doubles, none of which is a NaN.
inline uint64_t in_order(double key) {
  constexpr uint64_t kSign = uint64_t{1} << 63;
  uint64_t bits;
  key += 0.0;  // -0 is 0
  std::memcpy(&bits, &key, sizeof bits);
  return bits & kSign ? ~bits : bits | kSign;
}

// A set of ints below `size`: a bit for each, and above each level of words a bit for every word that is not zero.
class LeastFirst {
 public:
  explicit LeastFirst(int64_t size) {
    size_t num_words = 0;
    do {
      size = (size + 63) / 64;
      starts_[num_levels_++] = num_words;
      num_words += size;
    } while (size > 1);
    words_.resize(num_words + 1);
  }

  bool is_empty() const { return words_[starts_[num_levels_ - 1]] == 0; }

  void add(int32_t item) {
    for (int level = 0; level < num_levels_; ++level) {
      uint64_t& word = words_[starts_[level] + item / 64];
      const bool is_known = word != 0;
      word |= uint64_t{1} << item % 64;
      if (is_known) return;
      item /= 64;
    }
  }

  int32_t take_least() {
    uint64_t item = 0;
    for (int level = num_levels_ - 1; level >= 0; --level) item = item * 64 + __builtin_ctzll(words_[starts_[level] + item]);
    uint64_t place = item;
    for (int level = 0; level < num_levels_; ++level) {
      uint64_t& word = words_[starts_[level] + place / 64];
      word &= word - 1;  // the least is its first
      if (word != 0) break;
      place /= 64;
    }
    return static_cast<int32_t>(item);
  }

 private:
  static constexpr int kMostLevels = 6;  // 64 ** 6 items

  std::vector<uint64_t> words_;
  size_t starts_[kMostLevels] = {};
  int num_levels_ = 0;
};

}  // namespace hpmoe

#include "core/radix_sort.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

namespace hpmoe {
namespace {

constexpr int kDigits = 256, kBits = 8;
constexpr int64_t kGrain = 1 << 14;  // entries that are worth another thread
constexpr int64_t kFew = 32;  // entries that are sorted by comparisons

struct Range {
  int32_t least, most;
};

int64_t part_start(int64_t n, int32_t part, const Parts& parts) { return n * part / parts.count; }

Range range_of(const int32_t* keys, int64_t n, const Parts& parts) {
  std::vector<Range> found(parts.count, {keys[0], keys[0]});
  parts.run([&](int32_t part) {
    Range mine = found[part];
    for (int64_t i = part_start(n, part, parts); i < part_start(n, part + 1, parts); ++i) {
      mine = {std::min(mine.least, keys[i]), std::max(mine.most, keys[i])};
    }
    found[part] = mine;
  });
  for (const Range& other : found) found[0] = {std::min(found[0].least, other.least), std::max(found[0].most, other.most)};
  return found[0];
}

// Sorts a run of entries by 8 bits of their keys.
class Level {
 public:
  Level(const int32_t* keys, int32_t least, int shift) : keys_(keys), least_(static_cast<uint32_t>(least)), shift_(shift) {}

  // entry(i) is the i-th of n entries; write(place, entry) receives the entries in stable order, from place `first` on.
  // Entries of a part follow those of earlier parts with the same digit, so the result does not depend on the number of
  // parts. Returns the start of each digit, and the end of the run.
  template <class Entry, class Write>
  std::array<int32_t, kDigits + 1> sort(int64_t first, int64_t n, const Parts& parts, Entry entry, Write write) const {
    std::vector<std::array<int32_t, kDigits>> next(parts.count);
    parts.run([&](int32_t part) {
      std::array<int32_t, kDigits> counts{};
      for (int64_t i = part_start(n, part, parts); i < part_start(n, part + 1, parts); ++i) ++counts[digit(entry(i))];
      next[part] = counts;
    });
    std::array<int32_t, kDigits + 1> begin{};
    auto place = static_cast<int32_t>(first);
    for (int d = 0; d < kDigits; ++d) {
      begin[d] = place;
      for (std::array<int32_t, kDigits>& counts : next) {
        const int32_t count = counts[d];
        counts[d] = place;
        place += count;
      }
    }
    begin[kDigits] = place;
    parts.run([&](int32_t part) {
      std::array<int32_t, kDigits> mine = next[part];
      for (int64_t i = part_start(n, part, parts); i < part_start(n, part + 1, parts); ++i) {
        const int32_t e = entry(i);
        write(mine[digit(e)]++, e);
      }
    });
    return begin;
  }

 private:
  int digit(int32_t entry) const { return (static_cast<uint32_t>(keys_[entry]) - least_) >> shift_ & (kDigits - 1); }

  const int32_t* const keys_;
  const uint32_t least_;
  const int shift_;
};

// Sorts from the highest digit down: the next level sorts the runs of a level. The reads of a level are then close
// together, and an entry's place is its place within its run.
class Sort {
 public:
  Sort(const int32_t* keys, int32_t least, int32_t* order, int32_t* place, const Parts& parts)
      : keys_(keys), least_(least), order_(order), place_(place), parts_(parts) {}

  void by_digits(int64_t n, int shift, int32_t* scratch) {
    std::unique_ptr<int32_t[]> of_first, of_second;  // the entries that these levels have sorted
    if (shift > 0 && !scratch) of_first.reset(new int32_t[n]);
    if (shift > kBits) of_second.reset(new int32_t[n]);
    sort_run(0, n, shift, nullptr, scratch ? scratch : of_first.get(), of_second.get());
  }

 private:
  // Sorts a run of `from`, or of all entries, by the digits from `shift` down.
  void sort_run(int64_t first, int64_t n, int shift, const int32_t* from, int32_t* to, int32_t* other) {
    const auto entry = [=](int64_t i) { return from ? from[first + i] : static_cast<int32_t>(i); };
    if (n <= kFew) return sort_few(first, n, entry);
    const Level level(keys_, least_, shift);
    const Parts& parts = n < kGrain * parts_.count ? alone_ : parts_;
    if (shift == 0) {
      level.sort(first, n, parts, entry, [this](int32_t at, int32_t e) { write(at, e); });
      return;
    }
    const auto begin = level.sort(first, n, parts, entry, [=](int32_t at, int32_t e) { to[at] = e; });
    for (int d = 0; d < kDigits; ++d) {
      if (begin[d + 1] > begin[d]) sort_run(begin[d], begin[d + 1] - begin[d], shift - kBits, to, other, to);
    }
  }

  template <class Entry>
  void sort_few(int64_t first, int64_t n, Entry entry) {
    std::array<int32_t, kFew> few;
    for (int64_t i = 0; i < n; ++i) few[i] = entry(i);
    std::sort(few.begin(), few.begin() + n,
              [this](int32_t a, int32_t b) { return keys_[a] != keys_[b] ? keys_[a] < keys_[b] : a < b; });
    for (int64_t i = 0; i < n; ++i) write(static_cast<int32_t>(first + i), few[i]);
  }

  void write(int32_t at, int32_t entry) {
    if (order_) order_[at] = entry;
    if (place_) place_[entry] = at;
  }

  const int32_t* const keys_;
  const int32_t least_;
  int32_t *const order_, *const place_;
  const Parts& parts_;
  const Parts alone_ = undivided();
};

}  // namespace

Parts undivided() {
  return {1, [](const std::function<void(int32_t)>& job) { job(0); }};
}

void sort_stably(const int32_t* keys, int64_t n, int32_t* order, int32_t* place, const Parts& parts, int32_t* scratch) {
  if (n == 0) return;
  const Range range = range_of(keys, n, parts);
  const uint32_t widest = static_cast<uint32_t>(range.most) - static_cast<uint32_t>(range.least);
  int shift = 0;
  while (shift + kBits < 32 && widest >> (shift + kBits) != 0) shift += kBits;
  Sort(keys, range.least, order, place, parts).by_digits(n, shift, scratch);
}

}  // namespace hpmoe

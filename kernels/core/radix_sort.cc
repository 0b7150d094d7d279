#include "core/radix_sort.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

namespace hpmoe {
namespace {

constexpr int kDigits = 256, kBits = 8;

struct Item {
  uint32_t key;
  int32_t entry;
};

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

// One level: read(i) is the i-th item, write(place, item) takes them sorted stably by 8 bits of their keys. Of a digit the
// items of a part follow those of the parts before it, so the result does not depend on their number.
template <class Read, class Write>
void sort_level(int64_t n, int shift, const Parts& parts, Read read, Write write) {
  std::vector<std::array<int32_t, kDigits>> next(parts.count);
  parts.run([&](int32_t part) {
    std::array<int32_t, kDigits> counts{};
    for (int64_t i = part_start(n, part, parts); i < part_start(n, part + 1, parts); ++i) {
      ++counts[read(i).key >> shift & (kDigits - 1)];
    }
    next[part] = counts;
  });
  int32_t place = 0;
  for (int digit = 0; digit < kDigits; ++digit) {
    for (std::array<int32_t, kDigits>& counts : next) {
      const int32_t count = counts[digit];
      counts[digit] = place;
      place += count;
    }
  }
  parts.run([&](int32_t part) {
    std::array<int32_t, kDigits> mine = next[part];
    for (int64_t i = part_start(n, part, parts); i < part_start(n, part + 1, parts); ++i) {
      const Item item = read(i);
      write(mine[item.key >> shift & (kDigits - 1)]++, item);
    }
  });
}

}  // namespace

Parts undivided() {
  return {1, [](const std::function<void(int32_t)>& job) { job(0); }};
}

void sort_stably(const int32_t* keys, int64_t n, int32_t* order, int32_t* place, const Parts& parts) {
  if (n == 0) return;
  const Range range = range_of(keys, n, parts);
  const auto least = static_cast<uint32_t>(range.least), widest = static_cast<uint32_t>(range.most) - least;
  const auto given = [=](int64_t i) { return Item{static_cast<uint32_t>(keys[i]) - least, static_cast<int32_t>(i)}; };
  const auto result = [=](int32_t to, const Item& item) {
    if (order) order[to] = item.entry;
    if (place) place[item.entry] = to;
  };
  std::unique_ptr<Item[]> from, to;
  const auto items = [&](int64_t i) { return from[i]; };
  const auto next_items = [&](int32_t at, const Item& item) { to[at] = item; };
  for (int shift = 0;; shift += kBits) {
    const bool is_first = shift == 0, is_last = shift + kBits >= 32 || widest >> (shift + kBits) == 0;
    if (!is_last && !to) to.reset(new Item[n]);
    if (is_first && is_last) return sort_level(n, shift, parts, given, result);
    if (is_last) return sort_level(n, shift, parts, items, result);
    is_first ? sort_level(n, shift, parts, given, next_items) : sort_level(n, shift, parts, items, next_items);
    from.swap(to);
  }
}

}  // namespace hpmoe

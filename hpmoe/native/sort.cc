#include "sort.h"

#include <algorithm>
#include <vector>

#include "graph.h"

namespace hpmoe {

int64_t sort_by_task(const int32_t* rows, int64_t num_rows, int32_t width, int64_t num_tasks, bool unique, int32_t* sorted) {
  std::vector<int64_t> next(num_tasks + 1);
  for (int64_t i = 0; i < num_rows; ++i) {
    if (rows[i * width] < 0 || rows[i * width] >= num_tasks) throw BadTable();
    ++next[rows[i * width] + 1];
  }
  for (int64_t t = 0; t < num_tasks; ++t) next[t + 1] += next[t];
  for (int64_t i = 0; i < num_rows; ++i) std::copy_n(rows + i * width, width, sorted + next[rows[i * width]]++ * width);
  if (!unique) return num_rows;
  const auto row = [&](int64_t i) { return sorted + i * width; };
  const auto is_before = [&](const int32_t* a, const int32_t* b) {
    return std::lexicographical_compare(a, a + width, b, b + width);
  };
  std::vector<int32_t> mine(width);
  int64_t left = 0, first = 0;  // rows kept, and where those of the current task begin
  for (int64_t i = 0; i < num_rows; ++i) {
    if (left == 0 || *row(left - 1) != *row(i)) first = left;
    int64_t place = left;
    if (place > first && !is_before(row(place - 1), row(i))) {  // out of order, or there already
      std::copy_n(row(i), width, mine.data());
      while (place > first && is_before(mine.data(), row(place - 1))) --place;
      if (place > first && !is_before(row(place - 1), mine.data())) continue;
      std::move_backward(row(place), row(left), row(left + 1));
      std::copy_n(mine.data(), width, row(place));
    } else {
      std::copy_n(row(i), width, row(place));
    }
    ++left;
  }
  return left;
}

}  // namespace hpmoe

// Tables without the rows about events that are left out, the others by their new numbers.
#include "renumber.h"

#include "graph.h"

namespace hpmoe {
namespace {

template <class Row, class Kept>
int64_t renumber(const Row* rows, int64_t num_rows, Kept is_kept, const int32_t* number, int64_t num_events, Row* out) {
  int64_t count = 0;
  for (int64_t i = 0; i < num_rows; ++i) {
    if (rows[i].event < 0 || rows[i].event >= num_events) throw BadTable();
    out[count] = rows[i];
    out[count].event = number[rows[i].event];
    count += out[count].event >= 0 && is_kept(i);
  }
  return count;
}

}  // namespace

int64_t renumber_waits(const HpmoeWait* rows, int64_t num_rows, const uint8_t* is_kept, const int32_t* number,
                       int64_t num_events, HpmoeWait* out) {
  return renumber(rows, num_rows, [&](int64_t i) { return is_kept[i] != 0; }, number, num_events, out);
}

int64_t renumber_signals(const HpmoeSignal* rows, int64_t num_rows, const int32_t* number, int64_t num_events,
                         HpmoeSignal* out) {
  return renumber(rows, num_rows, [](int64_t) { return true; }, number, num_events, out);
}

}  // namespace hpmoe

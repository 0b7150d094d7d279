// The C functions of planner.h.
#include <algorithm>
#include <exception>

#include "compare.h"
#include "expand.h"
#include "graph.h"
#include "planner.h"
#include "renumber.h"
#include "schedule.h"

namespace {

template <class Function>
int guarded(Function function) {
  try {
    function();
    return HPMOE_OK;
  } catch (const hpmoe::BadTable&) {
    return HPMOE_BAD_TABLE;
  } catch (const std::exception&) {
    return HPMOE_OUT_OF_MEMORY;
  }
}

}  // namespace

extern "C" {

int hpmoe_find_runnable(const HpmoeFlow* flow, uint8_t* done) {
  return guarded([&] { hpmoe::find_runnable(*flow, done); });
}

int hpmoe_schedule(const HpmoeFlow* flow, const double* costs, const int64_t* order, const uint8_t* kind,
                   const int32_t* kind_starts, int32_t num_kinds, int32_t* queue_starts, int32_t* queue_tasks,
                   int32_t* sequence) {
  return guarded([&] {
    const hpmoe::Schedule made = hpmoe::schedule(*flow, costs, order, kind, kind_starts, num_kinds);
    std::copy(made.sequence.begin(), made.sequence.end(), sequence);
    int32_t next = 0;
    *queue_starts++ = 0;
    for (const auto& queue : made.queues) {
      for (int32_t t : queue) queue_tasks[next++] = t;
      *queue_starts++ = next;
    }
  });
}

int hpmoe_prune_waits(const HpmoeFlow* flow, const uint8_t* is_unit, uint8_t* needed) {
  return guarded([&] { hpmoe::prune_waits(*flow, is_unit, needed); });
}

int hpmoe_is_thinned(const HpmoeFlow* flow, const HpmoeFlow* derived, const int32_t* number, const int32_t* spans,
                     uint8_t* has, uint8_t* is_thinned) {
  return guarded([&] { *is_thinned = hpmoe::is_thinned(*flow, *derived, number, spans, has); });
}

int hpmoe_expand_waits(const HpmoeGrid* grids, int64_t num_ops, const HpmoeRule* rules, int64_t num_rules, HpmoeWait* rows,
                       int64_t room, int64_t* num_rows) {
  return guarded([&] { *num_rows = hpmoe::expand_waits(grids, num_ops, rules, num_rules, rows, room); });
}

int hpmoe_expand_signals(const HpmoeGrid* grids, int64_t num_ops, const HpmoeRule* rules, int64_t num_rules,
                         HpmoeSignal* rows, int64_t room, int64_t* num_rows) {
  return guarded([&] { *num_rows = hpmoe::expand_signals(grids, num_ops, rules, num_rules, rows, room); });
}

int hpmoe_renumber_waits(const HpmoeWait* rows, int64_t num_rows, const uint8_t* is_kept, const int32_t* number,
                         int64_t num_events, HpmoeWait* out, int64_t* num_left) {
  return guarded([&] { *num_left = hpmoe::renumber_waits(rows, num_rows, is_kept, number, num_events, out); });
}

int hpmoe_renumber_signals(const HpmoeSignal* rows, int64_t num_rows, const int32_t* number, int64_t num_events,
                           HpmoeSignal* out, int64_t* num_left) {
  return guarded([&] { *num_left = hpmoe::renumber_signals(rows, num_rows, number, num_events, out); });
}

int32_t hpmoe_planner_abi_version(void) { return 4; }

}  // extern "C"

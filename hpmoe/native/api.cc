// The C functions of planner.h.
#include <exception>

#include "graph.h"
#include "planner.h"
#include "schedule.h"
#include "sort.h"

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

int hpmoe_schedule(const HpmoeFlow* flow, const double* costs, const uint8_t* kind, const int32_t* kind_starts,
                   int32_t num_kinds, int32_t* queue_starts, int32_t* queue_tasks) {
  return guarded([&] {
    int32_t next = 0;
    *queue_starts++ = 0;
    for (const auto& queue : hpmoe::schedule(*flow, costs, kind, kind_starts, num_kinds)) {
      for (int32_t t : queue) queue_tasks[next++] = t;
      *queue_starts++ = next;
    }
  });
}

int hpmoe_prune_waits(const HpmoeFlow* flow, const uint8_t* is_unit, uint8_t* needed) {
  return guarded([&] { hpmoe::prune_waits(*flow, is_unit, needed); });
}

int hpmoe_sort_by_task(const int32_t* rows, int64_t num_rows, int32_t width, int64_t num_tasks, int32_t unique,
                       int32_t* sorted, int64_t* num_sorted) {
  return guarded([&] { *num_sorted = hpmoe::sort_by_task(rows, num_rows, width, num_tasks, unique != 0, sorted); });
}

int32_t hpmoe_planner_abi_version(void) { return 2; }

}  // extern "C"

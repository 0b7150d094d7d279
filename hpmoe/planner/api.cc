// The C functions of planner.h.
#include <algorithm>
#include <exception>

#include "expand.h"
#include "graph.h"
#include "planner.h"
#include "queues.h"
#include "renumber.h"
#include "schedule.h"

struct HpmoeGraph {
  hpmoe::Graph graph;
};

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

int hpmoe_make_graph(const HpmoeFlow* flow, HpmoeGraph** graph) {
  return guarded([&] { *graph = new HpmoeGraph{hpmoe::Graph(*flow)}; });
}

void hpmoe_free_graph(HpmoeGraph* graph) { delete graph; }

int hpmoe_find_runnable(const HpmoeFlow* flow, const HpmoeGraph* graph, uint8_t* done) {
  return guarded([&] { hpmoe::find_runnable(*flow, graph->graph, done); });
}

int hpmoe_schedule(const HpmoeFlow* flow, const HpmoeGraph* graph, const double* costs, double seen_us, const int64_t* order,
                   const uint8_t* kind, const int32_t* kind_starts, int32_t num_kinds, int32_t* queue_starts,
                   int32_t* queue_tasks, int32_t* sequence) {
  return guarded([&] {
    const hpmoe::Schedule made = hpmoe::schedule(*flow, graph->graph, costs, seen_us, order, kind, kind_starts, num_kinds);
    std::copy(made.sequence.begin(), made.sequence.end(), sequence);
    int32_t next = 0;
    *queue_starts++ = 0;
    for (const auto& queue : made.queues) {
      for (int32_t t : queue) queue_tasks[next++] = t;
      *queue_starts++ = next;
    }
  });
}

int hpmoe_deal(const HpmoeFlow* flow, const int32_t* sequence, const HpmoeDealt* of_op, int64_t num_ops, int32_t* queue,
               int32_t num_queues, int32_t* queue_starts, int32_t* queue_tasks) {
  return guarded([&] { hpmoe::deal(*flow, sequence, of_op, num_ops, queue, num_queues, queue_starts, queue_tasks); });
}

int hpmoe_are_queues(const HpmoeFlow* flow, const uint8_t* unit_of_op, int64_t num_ops, const uint8_t* units_of_queue,
                     uint8_t* are_queues) {
  return guarded([&] { *are_queues = hpmoe::are_queues(*flow, unit_of_op, num_ops, units_of_queue); });
}

int hpmoe_prune_waits(const HpmoeFlow* flow, const HpmoeGraph* graph, const uint8_t* is_unit, uint8_t* needed) {
  return guarded([&] { hpmoe::prune_waits(*flow, graph->graph, is_unit, needed); });
}

int hpmoe_expand_waits(const HpmoeGrid* grids, int64_t num_ops, const HpmoeRule* rules, int64_t num_rules, HpmoeWait* rows,
                       int64_t capacity, int64_t* num_rows) {
  return guarded([&] { *num_rows = hpmoe::expand_waits(grids, num_ops, rules, num_rules, rows, capacity); });
}

int hpmoe_expand_signals(const HpmoeGrid* grids, int64_t num_ops, const HpmoeRule* rules, int64_t num_rules,
                         HpmoeSignal* rows, int64_t capacity, int64_t* num_rows) {
  return guarded([&] { *num_rows = hpmoe::expand_signals(grids, num_ops, rules, num_rules, rows, capacity); });
}

int hpmoe_renumber_waits(const HpmoeWait* rows, int64_t num_rows, const uint8_t* is_kept, const int32_t* number,
                         int64_t num_events, HpmoeWait* out, int64_t* num_left) {
  return guarded([&] { *num_left = hpmoe::renumber_waits(rows, num_rows, is_kept, number, num_events, out); });
}

int hpmoe_renumber_signals(const HpmoeSignal* rows, int64_t num_rows, const int32_t* number, int64_t num_events,
                           HpmoeSignal* out, int64_t* num_left) {
  return guarded([&] { *num_left = hpmoe::renumber_signals(rows, num_rows, number, num_events, out); });
}

int32_t hpmoe_planner_abi_version(void) { return 9; }

}  // extern "C"

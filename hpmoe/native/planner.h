// The C ABI of the native planner: questions about the order of a taskflow's tasks, over its tables as Python holds them.
// No exception crosses it; every function returns a Result.
#pragma once

#include <cstdint>

extern "C" {

// Rows of the tables of hpmoe/taskflow.py, field by field.
struct HpmoeTask {
  int32_t op, peer, row, col, cols;
};
struct HpmoeWait {
  int32_t task, event, kind;
};
struct HpmoeSignal {
  int32_t task, event;
  int16_t kind, amount;
  int32_t remote;
};
struct HpmoeEvent {
  int32_t extent, index, mult, route, block;
};

static_assert(sizeof(HpmoeTask) == 20 && sizeof(HpmoeWait) == 12, "rows of TASK and WAIT");
static_assert(sizeof(HpmoeSignal) == 16 && sizeof(HpmoeEvent) == 20, "rows of SIGNAL and EVENT");

// A kind or a remote other than 0 is one whose counter or rank is found at run time.
struct HpmoeFlow {
  const HpmoeTask* tasks;
  const HpmoeWait* waits;
  const HpmoeSignal* signals;
  const HpmoeEvent* events;
  const int32_t* queue_starts;  // [num_queues + 1]
  const int32_t* queue_tasks;   // tasks queue by queue, in order
  int64_t num_tasks, num_waits, num_signals, num_events, num_queues;
};

enum HpmoeResult { HPMOE_OK = 0, HPMOE_OUT_OF_MEMORY = 1, HPMOE_BAD_TABLE = 2 };

// done[t] = 1 for each task that gets to run, when every queue runs in order, or in any order where there are no queues.
int hpmoe_find_runnable(const HpmoeFlow* flow, uint8_t* done);

// List scheduling: whenever a worker is free it takes the ready task of its kind with the longest path of costs to the end.
// kind_starts [num_kinds + 1]: the queues of kind k are kind_starts[k] .. kind_starts[k + 1] - 1; kind [num_tasks].
// Fills queue_starts [kind_starts[num_kinds] + 1] and queue_tasks [num_tasks]; tasks on a cycle are in none.
int hpmoe_schedule(const HpmoeFlow* flow, const double* costs, const uint8_t* kind, const int32_t* kind_starts,
                   int32_t num_kinds, int32_t* queue_starts, int32_t* queue_tasks);

// needed[w] = 1 for each wait that the order of the queues does not imply; is_unit [num_events] marks events about the rows
// of one slot or tile.
int hpmoe_prune_waits(const HpmoeFlow* flow, const uint8_t* is_unit, uint8_t* needed);

// Sorts a table of `width` words a row by its first word, the task. Rows of a task keep their order, or where `unique` are
// sorted too and each kept once. `sorted` has room for all rows; writes how many are left.
int hpmoe_sort_by_task(const int32_t* rows, int64_t num_rows, int32_t width, int64_t num_tasks, int32_t unique,
                       int32_t* sorted, int64_t* num_sorted);

// Grows with every change of this file; the host refuses a library of another number.
int32_t hpmoe_planner_abi_version(void);

}  // extern "C"

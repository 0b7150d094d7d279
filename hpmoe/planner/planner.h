// The C ABI of the native planner: questions about the order of a taskflow's tasks, over its tables as Python holds them.
// No exception crosses it; every function returns a Result.
#pragma once

#include <cstdint>

extern "C" {

// Rows of the tables of hpmoe/ir/taskflow.py, field by field.
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

// The order that the waits and signals of a flow impose, whatever its queues. The tables it is made of stay where they are
// and as they are until it is freed; functions that take it are given a flow of the same tables.
typedef struct HpmoeGraph HpmoeGraph;
int hpmoe_make_graph(const HpmoeFlow* flow, HpmoeGraph** graph);
void hpmoe_free_graph(HpmoeGraph* graph);

// done[t] = 1 for each task that gets to run, when every queue runs in order, or in any order where there are no queues.
int hpmoe_find_runnable(const HpmoeFlow* flow, const HpmoeGraph* graph, uint8_t* done);

// List scheduling: whenever a worker is free it takes the ready task with the least `order` [num_tasks], not negative; where
// that is NULL, the one with the longest path of costs to the end. Those that wait for a task are ready seen_us after its
// end.
// kind_starts [num_kinds + 1]: the queues of kind k are kind_starts[k] .. kind_starts[k + 1] - 1; kind [num_tasks].
// Fills queue_starts [kind_starts[num_kinds] + 1] and queue_tasks [num_tasks], and sequence [num_tasks] with how many tasks
// began before each; tasks on a cycle are in no queue and have -1.
int hpmoe_schedule(const HpmoeFlow* flow, const HpmoeGraph* graph, const double* costs, double seen_us, const int64_t* order,
                   const uint8_t* kind, const int32_t* kind_starts, int32_t num_kinds, int32_t* queue_starts,
                   int32_t* queue_tasks, int32_t* sequence);

// Where tasks of an op are dealt out: num_queues queues from first_queue on.
struct HpmoeDealt {
  int32_t first_queue, num_queues;
};

static_assert(sizeof(HpmoeDealt) == 8, "rows of DEALT");

// Queues of tasks in the order of `sequence` [num_tasks], as hpmoe_schedule gives it. queue [num_tasks] is that of each
// task, or -1 where tasks of its op are dealt out in turn; then it is filled in. Fills queue_starts and queue_tasks.
int hpmoe_deal(const HpmoeFlow* flow, const int32_t* sequence, const HpmoeDealt* of_op, int64_t num_ops, int32_t* queue,
               int32_t num_queues, int32_t* queue_starts, int32_t* queue_tasks);

// Whether the queues of a flow hold each task once, each in a queue that takes its unit: a bit of units_of_queue.
int hpmoe_are_queues(const HpmoeFlow* flow, const uint8_t* unit_of_op, int64_t num_ops, const uint8_t* units_of_queue,
                     uint8_t* are_queues);

// needed[w] = 1 for each wait that the order of the queues does not imply; is_unit [num_events] marks events about the rows
// of one slot or tile.
int hpmoe_prune_waits(const HpmoeFlow* flow, const HpmoeGraph* graph, const uint8_t* is_unit, uint8_t* needed);

// The tasks of one op are a grid, by unit, peer (one where there are none) and column tile; `blocks` units are an expert's.
struct HpmoeGrid {
  int32_t first_unit, num_units, num_peers, num_cols, blocks;
};

// Tasks of column tiles [first_col, last_col) of an op, those of one block of each expert where `block` is not -1, wait for
// or signal the event event + unit / units * by_unit + unit / blocks * by_expert + peer * by_peer. Amount and remote are
// those of signals.
struct HpmoeRule {
  int32_t op, first_col, last_col, block, event, units, by_unit, by_expert, by_peer, kind, amount, remote;
};

static_assert(sizeof(HpmoeGrid) == 20 && sizeof(HpmoeRule) == 48, "rows of GRID and RULE");

// What rules sorted by op say, row by row in the order of the tasks: waits of a task sorted and each once, signals in the
// order of the rules. There is room for `room` rows; writes how many there are.
int hpmoe_expand_waits(const HpmoeGrid* grids, int64_t num_ops, const HpmoeRule* rules, int64_t num_rules, HpmoeWait* rows,
                       int64_t capacity, int64_t* num_rows);
int hpmoe_expand_signals(const HpmoeGrid* grids, int64_t num_ops, const HpmoeRule* rules, int64_t num_rules,
                         HpmoeSignal* rows, int64_t capacity, int64_t* num_rows);

// The rows about events whose number [num_events] is not -1, of waits those of is_kept [num_rows], with that number instead;
// `out` can hold all rows. Writes how many are left.
int hpmoe_renumber_waits(const HpmoeWait* rows, int64_t num_rows, const uint8_t* is_kept, const int32_t* number,
                         int64_t num_events, HpmoeWait* out, int64_t* num_left);
int hpmoe_renumber_signals(const HpmoeSignal* rows, int64_t num_rows, const int32_t* number, int64_t num_events,
                           HpmoeSignal* out, int64_t* num_left);

// Grows with every change of this file; the host refuses a library of another number.
int32_t hpmoe_planner_abi_version(void);

}  // extern "C"

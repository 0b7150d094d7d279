// The C ABI of the simulator: a packed image run on a model of a machine. No exception crosses it.
#pragma once

#include <cstdint>

#include "core/abi.h"

extern "C" {

// Constants of a machine, named and grouped as in hpmoe/machines/hardware.py.
struct HpmoeMachine {
  struct {
    double bytes, bytes_per_us, worker_bytes_per_us;
  } l2;
  struct {
    double bytes_per_us, worker_bytes_per_us;
  } memory;
  struct {
    double bytes_per_us, node_bytes_per_us, worker_bytes_per_us;  // the first is the mean over near and far ranks
  } link;
  struct {
    double task_us, wait_us, poll_us, repoll_us, signal_us, remote_us, node_remote_us;
  } sync;
  double host_cores;
  double pass_us;  // replaces task_us and wait_us for a task of a slot past the last slot with rows
  int64_t node_size;
  int64_t num_early;  // workers that read weights while they wait, see core/operands.h
};

// Which part of an array a task touches: what it shares with other footprints in the same part may still be in L2.
enum HpmoePart : int64_t {
  HPMOE_UNIT,        // the rows of its unit
  HPMOE_WEIGHT,      // the columns of its tile, of the weight of its slot's expert
  HPMOE_DENSE,       // the same of one weight that all rows are multiplied by
  HPMOE_OF_EXPERT,   // all rows of its expert, slot by slot
  HPMOE_TOGETHER,    // some or all of an array that is taken as one part
  HPMOE_STREAM,      // what no other task touches
  HPMOE_FAN,         // rows of experts, of tokens that came once: `row` bytes for each of those
};

typedef hpmoe::Footprint HpmoeFootprint;
typedef hpmoe::Work HpmoeWork;

static_assert(sizeof(HpmoeMachine) == 19 * 8, "nineteen words of eight bytes");

enum { HPMOE_L2, HPMOE_MEMORY, HPMOE_EGRESS, HPMOE_INGRESS, HPMOE_NODE_EGRESS, HPMOE_NODE_INGRESS, HPMOE_NUM_RATES };

// ranks: ids at each route's buffer, and num_tokens; counters and bases are not touched. work [num_ops][4]: of a full tile
// of columns, and of the last one; then the same for the last block of rows. num_parts: of all arrays of a rank.
// times [num_ranks][num_tasks][3] microseconds, to whole nanoseconds, of what hpmoe_launch traces; released_by
// [num_ranks][num_tasks]: the task whose signal ended the last sleep before a task, as rank * num_tasks + its place in the
// order of the queues, or -1.
// missed [num_ranks][num_tasks]: bytes of each task that L2 did not hold.
// totals [num_ranks][HPMOE_NUM_RATES][2]: bytes of all demands, and microseconds with a demand. served [1 + num_ranks *
// HPMOE_NUM_RATES * num_bins]: microseconds of a bin, then the bytes that went over each rate in each bin. moved
// [num_ranks][num_ranks]: bytes that transfers of a rank copy to arrays of each. busy [1 + num_ranks * num_queues]: when the
// last task ended, then microseconds that each worker was in bodies. times, released_by and missed may be null, and num_bins
// 0: what there is of each task is not written then. A schedule that gets stuck is reported as a launch that timed out, on
// rank -1 where a run would take longer than a trace can say.
int hpmoe_simulate(const void* image, int64_t image_bytes, const HpmoeRank* ranks, int32_t num_ranks,
                   const HpmoeMachine* machine, const HpmoeWork* work, int64_t num_parts, double* times,
                   int32_t* released_by, double* missed, double* totals, double* served, double* moved, double* busy,
                   int32_t num_bins, HpmoeStatus* status);

}  // extern "C"

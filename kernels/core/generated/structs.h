// The packed image: what the host writes and a persistent kernel reads, on a CPU and on an Ascend device. It is one
// little-endian blob, the header first, every section 64-byte aligned. One image serves all ranks; the rank is an argument
// of a launch.
// Written by `python -m hpmoe.kernels.schema`; a test holds it equal to the definitions.
// clang-format off
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/generated/enums.h"

namespace hpmoe {

constexpr int32_t kMagic = 1213026117;  // first word of an image
constexpr int32_t kVersion = 10;  // of the layout of an image
constexpr int32_t kSectionAlignment = 64;  // bytes
constexpr int32_t kMaxOperands = 6;  // of an op
constexpr int32_t kWhole = 65536;  // the share of an expert that has no copies
constexpr int32_t kAbsent = -1;  // the id of no expert: its entry goes nowhere

// A task is one word of its queue: the low index_bits are its place in the grid of its op's tasks, the rest its template.
using TaskWord = uint32_t;

// Images of other plans of the same program may follow, num_behind of them, of which a launch takes one: the first that is
// for as many rows as the fullest rank receives, most_received or fewer, or else the last.
struct Header {
  int32_t magic, version, image_bytes, num_tasks, num_queues, num_templates, num_ops, num_buffers, num_events;
  int32_t num_event_runs, num_waits, num_signals, num_routes, num_shares, num_stops, ep_size, tile_rows, index_bits;
  int32_t tasks_offset, queues_offset, templates_offset, ops_offset, buffers_offset, event_runs_offset, waits_offset;
  int32_t signals_offset, routes_offset, shares_offset, stops_offset, peer_order_offset, num_behind, most_received;
};
static_assert(sizeof(Header) == 128 && offsetof(Header, most_received) == 124, "as in Python");

// The waits and signals of tasks of one op that differ only in their place: events are relative to it, see decode.h.
struct TaskTemplate {
  int32_t op, first_wait, num_waits, first_signal, num_signals;
};
static_assert(sizeof(TaskTemplate) == 20 && offsetof(TaskTemplate, num_signals) == 16, "as in Python");

// An event that tasks of a template wait for, and how a task finds it from there.
struct Wait {
  int32_t event, kind;
};
static_assert(sizeof(Wait) == 8 && offsetof(Wait, kind) == 4, "as in Python");

// An event that tasks of a template signal, how a task finds it from there, what it adds and on which rank.
struct Signal {
  int32_t event;
  int16_t kind, amount;
  int32_t remote;
};
static_assert(sizeof(Signal) == 12 && offsetof(Signal, remote) == 8, "as in Python");

// Events first .. up to the next run's: event first + i has threshold mult * extent(index + i), known once the rank's
// routing is.
struct EventRun {
  int32_t first, extent, index, mult, route;
};
static_assert(sizeof(EventRun) == 20 && offsetof(EventRun, route) == 16, "as in Python");

// A row-major array: cols is its last dimension; rows counts all rows before it, 0 where the host does not say.
struct Buffer {
  int32_t cols, rows_per_expert, dtype, rows;
};
static_assert(sizeof(Buffer) == 16 && offsetof(Buffer, rows) == 12, "as in Python");

// max_rows is the most rows a rank's received arrays hold; 0 means num_slots * tile_rows. Of the entries of one rank an
// expert takes ceil(num_tokens * top_k / num_experts * capacity_factor), num_tokens those of the launch, unless drop_policy
// is NONE; weights_buffer is read where it is PROBS. Where a rank has more local experts than num_experts / ep_size, the
// rest are room for copies, and the shares of all ranks' local experts begin at first_share. Over stops a row stands for a
// token: each rank counts as one expert and gets a token once at most. `of` is then an earlier route, to the token's
// experts, and from first_stop on there is a table of stops, [source][dest]: the rank that a row of `source` for experts on
// `dest` comes to. Both are -1 of a route by ids, whose rows come to `dest`. `over` is the route whose stops have a route's
// rows before and pass them on, or -1 where the ranks of tokens send them. An event for rows that come back is for those of
// return_tokens tokens. Where a local expert has rows, zeros fill them up to a multiple of `alignment`. An expert of the
// model lies in tp_size shards, on ranks g * tp_size to (g + 1) * tp_size - 1. Each is one of num_experts, and of the top_k
// entries of a token that chooses it; ids and weights are of the top_k / tp_size choices.
struct Route {
  int32_t ids_buffer, num_experts, num_local_experts, top_k, num_slots, num_tokens, max_rows, drop_policy, weights_buffer;
  int32_t first_share, of, over, first_stop, return_tokens, alignment, tp_size;
  double capacity_factor;
};
static_assert(sizeof(Route) == 72 && offsetof(Route, capacity_factor) == 64, "as in Python");

// A local expert of a rank: of a rank's entries for `expert` it takes those from low / kWhole to high / kWhole of them. -1
// where there is room and no copy.
struct Share {
  int32_t expert, low, high;
};
static_assert(sizeof(Share) == 12 && offsetof(Share, high) == 8, "as in Python");

// A buffer, or the number `value` where buffer is -1, and which rows and columns of it a task touches.
struct Operand {
  int32_t buffer;
  int16_t rows, cols;
  int32_t offset;
  float value;
  int32_t reserved[2];
};
static_assert(sizeof(Operand) == 24 && offsetof(Operand, reserved) == 16, "as in Python");

// Its operands are num_operands, of which it writes the first num_outputs. Its tasks are a grid: units first_row ..
// first_row + num_units - 1, peers 0 .. num_peers - 1 (none where 0), and columns 0 .. cols - 1 in tiles of tile_cols. A
// task of an op without columns has whole rows: those of a slot or tile are divided among `blocks` tasks. A put of peer j
// is for those at j, j + num_peers, ... of the rank's peer order.
struct Op {
  int32_t opcode, domain, route, num_rows, clipped, blocks;
  int16_t num_operands, num_outputs;
  int32_t first_row, num_units, num_peers, cols, tile_cols, param[4];
  Operand operands[6];
};
static_assert(sizeof(Op) == 208 && offsetof(Op, operands) == 64, "as in Python");

// `wait` is the expert where the code is OVER_CAPACITY, the route where it is NO_ROW_CAPACITY or IDS_CHANGED. `rank` is the
// one that the code tells of.
struct Status {
  int32_t code, rank, queue, task, event, wait;
  int64_t value, threshold;
};
static_assert(sizeof(Status) == 40 && offsetof(Status, threshold) == 32, "as in Python");

// An array: parts first .. are its own. `fixed` bytes and `row` bytes for each row of the task (or moved by it). `whole`:
// of a UNIT or OF_EXPERT what the array has for each row, of a WEIGHT, of DENSE and of what is TOGETHER the bytes of the
// part, so that what several tasks touch of it in turn is known to be new, or 0.
struct Footprint {
  int64_t first, part;
  double fixed, row, whole, cost;
};
static_assert(sizeof(Footprint) == 48 && offsetof(Footprint, cost) == 40, "as in Python");

// A task of an op takes core_fixed + rows (in whole granules) * core_row microseconds of its worker, one of at most
// skinny_rows rows, where that is above 0, the same of few_fixed and few_row, or none for no rows at all; and core_fan for
// each row that experts have of tokens that came once. Of a transfer the rows are those that it moves, with link_row bytes
// each; where these come in is `landing`, whose `row` is 0 where that is not known.
struct Work {
  double core_fixed, core_row, few_fixed, few_row, core_fan, link_row;
  int64_t skinny_rows, granule, num_footprints;
  Footprint landing, footprints[8];
};
static_assert(sizeof(Work) == 504 && offsetof(Work, footprints) == 120, "as in Python");

}  // namespace hpmoe

// The packed image: what the host writes and a persistent kernel reads, on a CPU and on an Ascend device alike.
//
// One little-endian blob, the header first, every section 64-byte aligned. One image serves all ranks; the rank is a
// launch argument.
// protocol.py states the same layout as NumPy dtypes; hpmoe_layout() lets a test compare the two field by field.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/tile_ops.h"

namespace hpmoe {

constexpr int32_t kMagic = 0x484D4F45;
constexpr int32_t kVersion = 10;
constexpr int32_t kSectionAlignment = 64;
constexpr int32_t kMaxOperands = 6;
constexpr int32_t kWhole = 1 << 16;  // the share of an expert that has no copies
constexpr int32_t kAbsent = -1;      // the id of no expert: its entry goes nowhere

// clang-format off: a list, several members a line
#define HPMOE_INDEX(X) X(STATIC, 0) X(SLOT_EXPERT, 1) X(ENTRY_TILE, 2) X(UNIT, 3) X(EXPERT, 4) X(PEER, 5) X(PEER_UNIT, 6)
#define HPMOE_AMOUNT(X) X(ROWS, 0) X(COUNT, 1)
#define HPMOE_REMOTE(X) X(LOCAL, 0) X(PEER, 1) X(EVERY, 2)
#define HPMOE_EXTENT(X)                                                                                              \
  X(ONE, 0) X(SLOT, 1) X(EXPERT, 2) X(RECEIVED, 3) X(TILE, 4) X(STATIC_TILE, 5) X(TOKENS, 6) X(ENTRIES, 7)           \
  X(TILE_ENTRIES, 8) X(SENT_TO, 9) X(SENT_TO_EXPERT, 10) X(RETURNED_TO, 11) X(RETURNED_TO_FROM_EXPERT, 12)        \
  X(REPLICA, 13) X(REPLICAS, 14) X(RELAYED, 15)
#define HPMOE_DTYPE(X) X(FLOAT32, 0) X(INT32, 1) X(BFLOAT16, 2) X(FLOAT16, 3) X(INT64, 4) X(UINT8, 5)
#define HPMOE_DROP_POLICY(X) X(NONE, 0) X(ERROR, 1) X(POSITION, 2) X(PROBS, 3)
#define HPMOE_CODE(X)                                                                                                \
  X(OK, 0) X(TIMEOUT, 1) X(ABORTED_PEER, 2) X(OUT_OF_MEMORY, 3) X(BAD_IMAGE, 4) X(INTERRUPTED, 5) X(WRONG_COUNT, 6)  \
  X(SLOT_OVERFLOW, 7) X(INDEX_OUT_OF_RANGE, 8) X(OVER_CAPACITY, 9) X(NOT_A_NUMBER, 10)  \
  X(NO_ROOM, 11) X(PEER_DIED, 12) X(PEER_LEFT, 13) X(PEER_LATE, 14) X(PEER_FAILED, 15) X(OTHER_CALL, 16)  \
  X(IDS_CHANGED, 17) X(NOT_SHARED, 18) X(PEER_LOST, 19)
// clang-format on

#define HPMOE_MEMBER(name, value) name = value,
enum class Index : int32_t { HPMOE_INDEX(HPMOE_MEMBER) };
enum class Amount : int16_t { HPMOE_AMOUNT(HPMOE_MEMBER) };
enum class Remote : int32_t { HPMOE_REMOTE(HPMOE_MEMBER) };
enum class Extent : int32_t { HPMOE_EXTENT(HPMOE_MEMBER) };
enum class Dtype : int32_t { HPMOE_DTYPE(HPMOE_MEMBER) };
enum class DropPolicy : int32_t { HPMOE_DROP_POLICY(HPMOE_MEMBER) };
enum class Code : int32_t { HPMOE_CODE(HPMOE_MEMBER) };
#undef HPMOE_MEMBER

// Images of other plans of the same program may follow, num_behind of them, of which a launch takes one: the first that is
// for as many rows as the fullest rank receives, most_received or fewer, or else the last.
struct Header {
  int32_t magic, version, image_bytes;
  int32_t num_tasks, num_queues, num_templates, num_ops, num_buffers, num_events, num_event_runs, num_waits, num_signals;
  int32_t num_routes, num_shares, num_stops, ep_size, tile_rows, index_bits;
  int32_t tasks_offset, queues_offset, templates_offset, ops_offset, buffers_offset, event_runs_offset, waits_offset;
  int32_t signals_offset, routes_offset, shares_offset, stops_offset, peer_order_offset;
  int32_t num_behind, most_received;
};

// A task is one word of its queue: the low index_bits are its place in the grid of its op's tasks, the rest its template.
using TaskWord = uint32_t;

// The waits and signals of tasks of one op that differ only in their place: events are relative to it, see decode.h.
struct TaskTemplate {
  int32_t op, first_wait, num_waits, first_signal, num_signals;
};

struct Wait {
  int32_t event, kind;
};

struct Signal {
  int32_t event;
  int16_t kind, amount;
  int32_t remote;
};

// Events first .. up to the next run's: event first + i has threshold mult * extent(index + i), known once the rank's
// routing is.
struct EventRun {
  int32_t first, extent, index, mult, route;
};

// A row-major array: cols is its last dimension; rows counts all rows before it, 0 where the host does not say.
struct Buffer {
  int32_t cols, rows_per_expert, dtype, rows;
};

// max_rows is the most rows a rank's received arrays hold; 0 means num_slots * tile_rows. Of the entries of one rank an
// expert takes ceil(num_tokens * top_k / num_experts * capacity_factor), num_tokens those of the launch, unless
// drop_policy is NONE; weights_buffer is read where it is PROBS. Where a rank has more local experts than num_experts /
// ep_size, the rest are room for copies, and the shares of all ranks' local experts begin at first_share.
// Over stops a row stands for a token: each rank counts as one expert and gets a token once at most. `of` is then an earlier
// route, to the token's experts, and from first_stop on there is a table of stops, [source][dest]: the rank that a row of
// `source` for experts on `dest` comes to. Both are -1 of a route by ids, whose rows come to `dest`. `over` is the route
// whose stops have a route's rows before and pass them on, or -1 where the ranks of tokens send them. An event for rows that
// come back is for those of return_tokens tokens. Where a local expert has rows, zeros fill them up to a multiple of
// `alignment`. An expert of the model lies in tp_size shards, on ranks g * tp_size to (g + 1) * tp_size - 1. Each is one of
// num_experts, and of the top_k entries of a token that chooses it; ids and weights are of the top_k / tp_size choices.
struct Route {
  int32_t ids_buffer, num_experts, num_local_experts, top_k, num_slots, num_tokens, max_rows, drop_policy;
  int32_t weights_buffer, first_share, of, over, first_stop, return_tokens, alignment, tp_size;
  double capacity_factor;
};

// A local expert of a rank: of a rank's entries for `expert` it takes those from low / kWhole to high / kWhole of them.
// -1 where there is room and no copy.
struct Share {
  int32_t expert, low, high;
};

struct Operand {
  int32_t buffer;
  int16_t rows, cols;
  int32_t offset;
  float value;
  int32_t reserved[2];
};

// Its operands are num_operands, of which it writes the first num_outputs. Its tasks are a grid: units first_row ..
// first_row + num_units - 1, peers 0 .. num_peers - 1 (none where 0), and columns 0 .. cols - 1 in tiles of tile_cols
// (whole rows where 0). A put of peer j is for those at j, j + num_peers, ... of the rank's peer order.
struct Op {
  int32_t opcode, domain, route, num_rows, clipped, blocks;
  int16_t num_operands, num_outputs;
  int32_t first_row, num_units, num_peers, cols, tile_cols;
  int32_t param[4];
  Operand operands[kMaxOperands];
};

// `wait` is the expert where the code is OVER_CAPACITY, the route where it is NO_ROOM or IDS_CHANGED. `rank` is the one that
// the code tells of.
struct Status {
  int32_t code, rank, queue, task, event, wait;
  int64_t value, threshold;
};

static_assert(sizeof(Header) == 128, "a header is 32 words");
static_assert(sizeof(TaskWord) == 4, "a task is one word: sixteen in a cache line");
static_assert(sizeof(TaskTemplate) == 20, "a template is five words");
static_assert(sizeof(Wait) == 8, "a wait is two words");
static_assert(sizeof(Signal) == 12 && offsetof(Signal, remote) == 8,
              "a signal is three words, the second holds kind and amount");
static_assert(sizeof(EventRun) == 20, "a run of events is five words");
static_assert(sizeof(Buffer) == 16, "a buffer is four words");
static_assert(sizeof(Route) == 72 && offsetof(Route, capacity_factor) == 64, "a route is sixteen words and a double");
static_assert(sizeof(Share) == 12, "a share is three words");
static_assert(sizeof(Operand) == 24 && offsetof(Operand, value) == 12,
              "an operand is six words, the second holds both modes");
static_assert(sizeof(Op) == 64 + kMaxOperands * sizeof(Operand), "an op is sixteen words and its operands");
static_assert(offsetof(Op, num_outputs) == 26 && offsetof(Op, operands) == 64,
              "operands begin after sixteen words, the seventh of which holds both counts of them");
static_assert(sizeof(Status) == 40, "a status is six words and two long words");

}  // namespace hpmoe

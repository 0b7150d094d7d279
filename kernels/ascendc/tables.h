// Positions of the parts of a rank's routing tables, computed with the same code by the host, which allocates them, and
// by the kernel, which fills them.
//
// Letters: E experts, L local experts, R ranks, V AIV cores, T tokens, K entries per token, S slots of a rank. Words have
// 32 bits, and every part begins at a line of 64 bytes. `width` is at least E + 1 and L * R + 1 words; L * R exceeds E if
// ranks have replicas.
#pragma once

#include "core/decode.h"

namespace hpmoe {

// The words of protocol.h's Route that a device needs; a device has no double precision.
struct RouteWords {
  int32_t ids_buffer, num_experts, num_local_experts, top_k, num_slots, num_tokens, max_rows, drop_policy;
  int32_t weights_buffer, first_share, of, over, first_stop, return_tokens, alignment, tp_size;
};
static_assert(offsetof(RouteWords, tp_size) == offsetof(Route, tp_size), "the first words of a Route");

// Before the tables of the first route: unit matrices of 16 x 16 in fractals, in bfloat16, float16 and float32, with
// which an AIC adds rows by multiplication.
constexpr int32_t kUnitBfloat16 = 0, kUnitFloat16 = 128, kUnitFloat32 = 256, kUnitWords = 512;

// After the unit matrices, a line whose first word is the number of the launch's plan.
constexpr int32_t kChosenPlan = kUnitWords, kFirstTables = kChosenPlan + 16;

constexpr int32_t kSlotBits = 20;  // bits of a slot's number of rows; the other 12 bits hold the expert

HPMOE_DEVICE inline int32_t in_lines(int32_t words) { return (words + 15) / 16 * 16; }

struct RouteTables {
  int32_t shares;  // [V][width] entries of each expert in an AIV's part of the tokens, or [width] in all (gather_sort.h)
  int32_t entries;  // [T * K] this rank's entries that are kept, sorted stably by the local expert of a rank
  int32_t sent;  // [R][width] sent[s][e]: entries of rank s for local experts before e, counted over all ranks
  int32_t expert_start;  // [R][narrow] first received row of each expert of a rank
  int32_t slot_start;  // [R][narrow] first slot of each expert of a rank
  int32_t own_start;  // [R][narrow] rows of each expert of a rank that come from ranks before that rank
  int32_t before;  // [R][narrow] rows of each of this rank's experts that come from ranks before s
  int32_t ahead;  // [width] rows of each local expert that come from ranks before this one
  int32_t chosen;  // [T * K] each entry's local expert, counted over all ranks, or -1 where it is not kept,
  int32_t place;  // [T * K] and its place among this rank's entries for it; not filled where all are kept, unless
                  // a route to ranks asks
  int32_t dropped;  // [width] entries that each expert has no capacity for
  int32_t lightest;  // [width] DropPolicy::PROBS: the key of each expert's lightest entry that is kept,
  int32_t last;  // [width] and the last entry of that key that is
  int32_t fan_shares;  // [V][width] of a route to ranks: what `shares` is, counted by the rows of experts
  int32_t fan_start;  // [T * K + 1] where in `fans` the experts of each of `entries` begin
  int32_t fans;  // [T * K][2] local expert, and place among this rank's entries for it; of relays: 0, and the choice
  int32_t rank_shares;  // [V][width] of relays: of each stop of the rows that they pass on, what `shares` is
  int32_t relayed;  // [T * K] beside `entries` of the route that relays pass on: row * K + choice, of this rank's rows there
  int32_t slots;  // [S][2] of this rank: its first row; its expert, kSlotBits higher than its number of rows
  int32_t width, narrow, end;
};

HPMOE_DEVICE inline RouteTables lay_out(const RouteWords& route, int32_t ep_size, int32_t num_aiv, int32_t start) {
  RouteTables t{};
  const int32_t num_entries = route.num_tokens * route.top_k;
  const int32_t num_local = route.num_local_experts * ep_size;
  t.width = in_lines((route.num_experts > num_local ? route.num_experts : num_local) + 1);
  t.narrow = in_lines(route.num_local_experts + 1);
  t.shares = start;
  t.entries = t.shares + num_aiv * t.width;
  t.sent = t.entries + in_lines(num_entries);
  t.expert_start = t.sent + ep_size * t.width;
  t.slot_start = t.expert_start + ep_size * t.narrow;
  t.own_start = t.slot_start + ep_size * t.narrow;
  t.before = t.own_start + ep_size * t.narrow;
  t.ahead = t.before + ep_size * t.narrow;
  t.chosen = t.ahead + t.width;
  t.place = t.chosen + in_lines(num_entries);
  t.dropped = t.place + in_lines(num_entries);
  t.lightest = t.dropped + t.width;
  t.last = t.lightest + t.width;
  t.fan_shares = t.last + t.width;
  t.fan_start = t.fan_shares + (route.of < 0 ? 0 : num_aiv * t.width);
  t.fans = t.fan_start + (route.of < 0 ? 0 : in_lines(num_entries + 1));
  t.rank_shares = t.fans + (route.of < 0 ? 0 : in_lines(2 * num_entries));
  t.relayed = t.rank_shares + (route.of < 0 ? 0 : num_aiv * t.width);
  t.slots = t.relayed + (route.of < 0 ? 0 : in_lines(num_entries));
  t.end = t.slots + in_lines(2 * route.num_slots);
  return t;
}

}  // namespace hpmoe

// Where the routing tables of a rank lie: computed alike by the host that allocates them and by the kernel that fills them.
//
// Letters: E experts, L local experts, R ranks, V AIV cores, T tokens, K experts per token. All words of 32 bits, every
// part from a line of 64 bytes on.
#pragma once

#include "decode.h"

namespace hpmoe {

// The words of protocol.h's Route that a device needs: it has no double precision.
struct RouteWords {
  int32_t ids_buffer, num_experts, num_local_experts, top_k, num_slots, num_tokens, max_rows, drop_policy;
};

HPMOE_DEVICE inline int32_t in_lines(int32_t words) { return (words + 15) / 16 * 16; }

struct RouteTables {
  int32_t shares;        // [V][width] entries of each expert in the part of the tokens that an AIV sorts
  int32_t entries;       // [T * K] this rank's entries, sorted stably by expert
  int32_t sent;          // [R][width] sent[s][e]: entries of rank s for experts before e
  int32_t expert_start;  // [R][narrow] first received row of each expert of a rank
  int32_t slot_start;    // [R][narrow] first slot of each expert of a rank
  int32_t own_start;     // [R][narrow] rows of each expert of a rank that come from ranks before that rank
  int32_t before;        // [R][narrow] rows of each of this rank's experts that come from ranks before s
  int32_t ahead;         // [width] rows of each expert that come from ranks before this one
  int32_t width, narrow, end;
};

HPMOE_DEVICE inline RouteTables lay_out(const RouteWords& route, int32_t ep_size, int32_t num_aiv, int32_t start) {
  RouteTables t{};
  t.width = in_lines(route.num_experts + 1);
  t.narrow = in_lines(route.num_local_experts + 1);
  t.shares = start;
  t.entries = t.shares + num_aiv * t.width;
  t.sent = t.entries + in_lines(route.num_tokens * route.top_k);
  t.expert_start = t.sent + ep_size * t.width;
  t.slot_start = t.expert_start + ep_size * t.narrow;
  t.own_start = t.slot_start + ep_size * t.narrow;
  t.before = t.own_start + ep_size * t.narrow;
  t.ahead = t.before + ep_size * t.narrow;
  t.end = t.ahead + t.width;
  return t;
}

}  // namespace hpmoe

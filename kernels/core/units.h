// The rows that a task and an event cover once the routing is known, equal on every target.
//
// A target defines a Frame of an op, a task and its unit. Frame.place() has the rank me(), tile_rows(), num_tokens() of
// the launch, ep_size(), and peer(position, back) of the order in which the rank sends rows, or sends them back.
// Frame.routed() answers questions about the op's route.
#pragma once

#include "core/decode.h"
#include "core/numbers.h"

namespace hpmoe {

// Rows [start, start + rows) and their local expert.
template <class Number>
struct UnitOf {
  Number start, rows;
  int32_t expert;
};

// Returns at most `rows` of `total` rows, from `start` on.
template <class Unit>
HPMOE_DEVICE inline Unit cut(int64_t total, int64_t start, int64_t rows) {
  const int64_t first = least(start, total), count = least(rows, total - first);
  return {static_cast<decltype(Unit::start)>(first), static_cast<decltype(Unit::rows)>(count), 0};
}

HPMOE_DEVICE inline int64_t clip(int64_t rows, int32_t clipped, int64_t num_tokens) {
  return clipped ? least(rows, num_tokens) : rows;
}

// Returns the rows of a task's unit; for a put to experts, the slot on the destination.
template <class Unit, class Frame>
HPMOE_DEVICE inline Unit find_whole_unit(const Frame& frame) {
  const auto& place = frame.place();
  const Op& op = frame.op;
  const Task& task = frame.task;
  const int64_t tile_rows = place.tile_rows(), num_tokens = place.num_tokens();
  switch (static_cast<Domain>(op.domain)) {
    case Domain::ONCE:
    case Domain::COPIES: return {0, 1, 0};
    case Domain::TILES: return cut<Unit>(clip(op.num_rows, op.clipped, num_tokens), task.row * tile_rows, tile_rows);
    case Domain::SLOTS: {
      const bool on_peer = is_put(opcode_of(op)) && !is_back(opcode_of(op));
      const auto& slot = frame.routed().slot(on_peer ? place.peer(task.peer, false) : place.me(), task.row);
      return {slot.start, slot.rows, slot.expert};
    }
    default: break;
  }
  if (static_cast<Rows>(op.operands[1].rows) == Rows::ALL) {
    const auto summed = params::Summed::of(op);
    return cut<Unit>(clip(summed.rows, summed.of_tokens, num_tokens), 0, summed.rows);
  }
  const int32_t expert = task.row / op.blocks;
  return {frame.routed().expert_start(place.me(), expert), frame.routed().expert_rows(place.me(), expert), expert};
}

// Returns the rows that a task covers: those of its unit, or of its part of the unit.
template <class Unit, class Frame>
HPMOE_DEVICE inline Unit find_unit(const Frame& frame) {
  const Unit unit = find_whole_unit<Unit>(frame);
  const int32_t parts = num_parts(frame.op);
  if (parts == 1) return unit;
  const int64_t height = (frame.place().tile_rows() + parts - 1) / parts;
  const Unit part = cut<Unit>(unit.rows, frame.task.col * height, height);
  return {static_cast<decltype(Unit::start)>(unit.start + part.start), part.rows, unit.expert};
}

constexpr int64_t kUnknownExtent = -1;

// Returns the rows that an event's threshold is a multiple of. `routing` may be NULL if its run has no route.
template <class Unit, class Place, class Routing>
HPMOE_DEVICE inline int64_t find_extent(const Place& place, const EventRun& run, int32_t index, const Routing* routing) {
  const int64_t tile_rows = place.tile_rows(), num_tokens = place.num_tokens();
  switch (static_cast<Extent>(run.extent)) {
    case Extent::ONE:
    case Extent::STATIC_TILE: return 1;
    case Extent::TILE: return cut<Unit>(num_tokens, index * tile_rows, tile_rows).rows;
    case Extent::TOKENS: return num_tokens;
    default: break;
  }
  if (!routing) return kUnknownExtent;
  const int32_t me = place.me(), experts = routing->num_local_experts();
  switch (static_cast<Extent>(run.extent)) {
    case Extent::SLOT: return routing->slot(me, index).rows;
    case Extent::EXPERT: return routing->expert_rows(me, index);
    case Extent::RECEIVED: return routing->received(me);
    case Extent::ENTRIES: return routing->all_kept_entries(me) + routing->padding(me);
    case Extent::TILE_ENTRIES: {
      const int64_t return_tokens = routing->return_tokens();
      const Unit tokens = cut<Unit>(num_tokens, index * return_tokens, return_tokens);
      const int64_t padding = index == 0 ? routing->padding(me) : 0;
      return routing->kept_entries(me, tokens.start, tokens.rows) + padding;
    }
    case Extent::SENT_TO: return routing->sent_to(me, place.peer(index, false));
    case Extent::RETURNED_TO: return routing->sent_to(place.peer(index, true), me);
    case Extent::SENT_TO_EXPERT: return routing->sent_to_expert(me, place.peer(index / experts, false), index % experts);
    case Extent::RETURNED_TO_FROM_EXPERT:
      return routing->sent_to_expert(place.peer(index / experts, true), me, index % experts);
    case Extent::RELAYED: return routing->relayed(me);
    case Extent::REPLICA: return routing->is_copy(me, index) ? 1 : 0;
    case Extent::REPLICAS: return routing->num_copies(me, index);
    default: return kUnknownExtent;
  }
}

}  // namespace hpmoe

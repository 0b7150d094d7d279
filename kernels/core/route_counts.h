// Row counts and row positions of a route, computed on every target from sums that the target reads.
#pragma once

#include "core/expert_slots.h"

namespace hpmoe {

// Rows that one rank sends to one local expert of another, or the part of them in one slot: entries from first_entry of
// the source's list on. The last `padding` rows are zeros, from first_padding on. For a matrix, rows from first_entry on.
template <class Number>
struct SegmentOf {
  int32_t source, dest, expert;
  Number rows;
  Number first_row;  // among the received rows of dest
  Number first_entry;
  Number padding = 0, first_padding = 0;
  int32_t of_source = -1;  // the rank of the tokens of rows that a relay (`source`) forwards

  HPMOE_DEVICE inline Number num_entries() const { return rows - padding; }

  HPMOE_DEVICE static inline SegmentOf of_matrix(int32_t source, int32_t dest, int32_t expert, int64_t rows,
                                                 int64_t first_row, int64_t from) {
    return {source, dest, expert, static_cast<Number>(rows), static_cast<Number>(first_row), static_cast<Number>(from)};
  }
};

// Returns the part of a segment inside a slot.
template <class Number, class Slot>
HPMOE_DEVICE inline SegmentOf<Number> cut_to(const Slot& slot, SegmentOf<Number> part) {
  const Number begin = slot.start, end = begin + slot.rows, first = most(part.first_row, begin);
  const Number entries = most(least(part.first_row + part.num_entries(), end) - first, Number{0});
  const Number zeros_end = least(part.first_padding + part.padding, end);
  part.first_padding = most(part.first_padding, begin);
  part.padding = most(zeros_end - part.first_padding, Number{0});
  part.rows = entries + part.padding;
  if (entries == 0) return part;
  part.first_entry += first - part.first_row;
  part.first_row = first;
  return part;
}

// Answers questions about a Route, which derives from this class and reads:
//   ep_size(), num_local_experts(), alignment(), tile_rows()
//   sent_start(source, e): entries of `source` for local experts before e, counted over all ranks
//   expert_start(rank, e): the first received row of a local expert
//   source_start(source, dest, e): the first received row that is from `source`
//   own_start(rank, e): received rows of a local expert that are from ranks before `rank`
//   first_slot(rank, e): slots of the local experts before e
//   expert_padding(rank, e): rows of zeros that fill up those of a local expert; the rank sends these to itself
//   relays(): the route to relays, whose stop(source, dest) is the relay between two ranks
template <class Route, class Number>
class RouteCounts {
 public:
  HPMOE_DEVICE inline Number expert_rows(int32_t rank, int32_t expert) const {
    return route().expert_start(rank, expert + 1) - route().expert_start(rank, expert);
  }
  HPMOE_DEVICE inline Number received(int32_t rank) const { return route().expert_start(rank, route().num_local_experts()); }
  // Padding rows of all experts of a rank.
  HPMOE_DEVICE inline Number padding(int32_t rank) const {
    Number rows = 0;
    for (int32_t e = 0; e < route().num_local_experts() && route().alignment() > 1; ++e)
      rows += route().expert_padding(rank, e);
    return rows;
  }

  // Entries of `source` for local experts first .. last - 1 of `dest`; all_kept_entries() counts those that `rank` sends
  // anywhere.
  HPMOE_DEVICE inline Number entries_for(int32_t source, int32_t dest, int32_t first, int32_t last) const {
    const int32_t e = dest * route().num_local_experts();
    return route().sent_start(source, e + last) - route().sent_start(source, e + first);
  }
  HPMOE_DEVICE inline Number all_kept_entries(int32_t rank) const {
    return route().sent_start(rank, route().ep_size() * route().num_local_experts());
  }
  // Rows that a rank sends to another rank, padding included.
  HPMOE_DEVICE inline Number sent_to(int32_t source, int32_t dest) const {
    return entries_for(source, dest, 0, route().num_local_experts()) + (source == dest ? route().padding(dest) : 0);
  }
  HPMOE_DEVICE inline Number sent_to_expert(int32_t source, int32_t dest, int32_t expert) const {
    return entries_for(source, dest, expert, expert + 1) + (source == dest ? route().expert_padding(dest, expert) : 0);
  }
  // Rows that a relay forwards, over all ranks whose tokens it has.
  HPMOE_DEVICE inline Number relayed(int32_t relay) const {
    const auto& relays = route().relays();
    Number rows = 0;
    for (int32_t source = 0; source < route().ep_size(); ++source) {
      if (relays.entries_for(source, relay, 0, 1) == 0) continue;
      for (int32_t dest = 0; dest < route().ep_size(); ++dest)
        if (relays.stop(source, dest) == relay) rows += entries_for(source, dest, 0, route().num_local_experts());
    }
    return rows;
  }

  HPMOE_DEVICE inline ExpertSlots expert_slots(int32_t rank, int32_t expert) const {
    const int32_t first = route().first_slot(rank, expert), count = route().first_slot(rank, expert + 1) - first;
    const int32_t tile_rows = route().tile_rows();
    const int32_t own = count > 0 ? static_cast<int32_t>(route().own_start(rank, expert)) / tile_rows % count : 0;
    return {expert, first, count, own, static_cast<int32_t>(route().expert_start(rank, expert)), tile_rows};
  }
  // Number of slots of a rank that have rows.
  HPMOE_DEVICE inline int32_t num_used_slots(int32_t rank) const {
    return route().first_slot(rank, route().num_local_experts());
  }
  // Returns the expert of a slot, or the number of experts if the slot has no rows.
  HPMOE_DEVICE inline int32_t expert_of_slot(int32_t rank, int32_t slot) const {
    int32_t low = 0, high = route().num_local_experts();
    while (low < high) {
      const int32_t middle = (low + high) / 2;
      if (route().first_slot(rank, middle + 1) <= slot) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  HPMOE_DEVICE inline SegmentOf<Number> segment(int32_t source, int32_t dest, int32_t expert) const {
    return segment_from(source, dest, expert, route().source_start(source, dest, expert));
  }
  // Returns the segment, given its first row.
  HPMOE_DEVICE inline SegmentOf<Number> segment_from(int32_t source, int32_t dest, int32_t expert, Number first_row) const {
    const int32_t e = dest * route().num_local_experts() + expert;
    const Number first = route().sent_start(source, e), entries = route().sent_start(source, e + 1) - first;
    const Number zeros = source == dest ? route().expert_padding(dest, expert) : 0;
    return {source, dest, expert, entries + zeros, first_row, first, zeros, route().expert_start(dest, expert + 1) - zeros};
  }
  template <class Slot>
  HPMOE_DEVICE inline SegmentOf<Number> segment_in_slot(int32_t source, int32_t dest, const Slot& slot) const {
    return cut_to(slot, segment(source, dest, slot.expert));
  }

 private:
  HPMOE_DEVICE inline const Route& route() const { return static_cast<const Route&>(*this); }
};

}  // namespace hpmoe

// Which ranks' rows each slot of received rows holds, so that a transfer to many ranks looks at those alone.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/frame.h"

namespace hpmoe {

// Of one route, once all ranks have placed their rows.
class FullSlots {
 public:
  FullSlots(const Image& image, const Route& route, const Routing& routing)
      : num_ranks_(image.header->ep_size),
        num_slots_(route.num_slots),
        has_rows_(int64_t{num_ranks_} * num_slots_ * num_ranks_) {
    for (int32_t dest = 0; dest < num_ranks_; ++dest)
      for (int32_t slot = 0; slot < num_slots_; ++slot) note(routing, dest, slot);
  }

  bool have_rows(int32_t source, int32_t dest, int32_t slot) const { return has_rows_[at(source, dest, slot)]; }

 private:
  int64_t at(int32_t source, int32_t dest, int32_t slot) const {
    return (int64_t{dest} * num_slots_ + slot) * num_ranks_ + source;
  }

  // Rows of an expert are in the order of the ranks that they come from; those of zeros are the rank's own.
  void note(const Routing& routing, int32_t dest, int32_t index) {
    const Slot& slot = routing.slot(dest, index);
    if (slot.rows == 0) return;
    int32_t first = 0, last = num_ranks_;  // the first rank whose rows end after the slot's first
    while (first < last) {
      const int32_t middle = (first + last) / 2;
      const Segment part = routing.segment(middle, dest, slot.expert);
      if (part.first_row + part.num_entries() > slot.start)
        last = middle;
      else
        first = middle + 1;
    }
    for (; first < num_ranks_ && routing.segment(first, dest, slot.expert).first_row < slot.start + slot.rows; ++first)
      has_rows_[at(first, dest, index)] = routing.segment_in_slot(first, dest, slot).rows > 0;
    has_rows_[at(dest, dest, index)] = routing.segment_in_slot(dest, dest, slot).rows > 0;
  }

  int32_t num_ranks_, num_slots_;
  std::vector<bool> has_rows_;  // [num_ranks][num_slots][num_ranks], of the rank that has the slot first
};

// Calls visit(segment) for each of a transfer's that has rows, until that returns true; returns whether it did.
template <class Visit>
bool any_full_segment(const Frame& frame, const std::vector<FullSlots>& full, Visit visit) {
  if (is_relayed(frame.op)) {
    bool found = false;
    for_each_segment(frame, [&](const Segment& segment) { found = found || (segment.rows > 0 && visit(segment)); });
    return found;
  }
  const bool is_put_task = is_put(opcode_of(frame.op)), back = goes_back(frame.op);
  const int32_t count = num_segments(frame), me = frame.rank;
  for (int32_t i = 0; i < count; ++i) {
    if (is_put_task) {
      const int32_t peer = frame.place().peer(position_of(frame.op, frame.task, i), back);
      if (!full[frame.op.route].have_rows(back ? peer : me, back ? me : peer, frame.task.row)) continue;
    }
    const Segment segment = segment_at(frame, i);
    if (segment.rows > 0 && visit(segment)) return true;
  }
  return false;
}

template <class Visit>
void for_each_full_segment(const Frame& frame, const std::vector<FullSlots>& full, Visit visit) {
  any_full_segment(frame, full, [&](const Segment& segment) {
    visit(segment);
    return false;
  });
}

}  // namespace hpmoe

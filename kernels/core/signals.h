// The ranks and events that a task's signals add to, equal on every target. units.h describes Frame.
#pragma once

#include "core/segments.h"

namespace hpmoe {

// Returns the event that a task waits for, or that it signals for its own unit.
template <class Frame, class Row>
HPMOE_DEVICE inline int64_t event_of(const Frame& frame, const Row& row) {
  const bool by_expert = static_cast<Index>(row.kind) == Index::SLOT_EXPERT;
  return row.event + event_offset(row.kind, frame.op, frame.task) + (by_expert ? frame.unit.expert : 0);
}

// Number of ranks that a signal for the task's own unit reaches; target_at() returns the i-th.
template <class Frame>
HPMOE_DEVICE inline int32_t num_targets(const Frame& frame, const Signal& signal) {
  switch (static_cast<Remote>(signal.remote)) {
    case Remote::LOCAL: return 1;
    case Remote::PEER: return num_task_peers(frame.op, frame.task, frame.place().ep_size());
    case Remote::EVERY: return frame.place().ep_size();
  }
  return 0;
}
template <class Frame>
HPMOE_DEVICE inline int32_t target_at(const Frame& frame, const Signal& signal, int32_t i) {
  switch (static_cast<Remote>(signal.remote)) {
    case Remote::LOCAL: break;
    case Remote::PEER: return frame.place().peer(position_of(frame.op, frame.task, i), goes_back(frame.op));
    case Remote::EVERY: return frame.place().peer(i, false);
  }
  return frame.place().me();
}

// Returns the rank that a signal for a segment reaches; segment_event() returns the event. For ENTRY_TILE the entries add
// a further offset.
template <class Frame, class Segment>
HPMOE_DEVICE inline int32_t segment_target(const Frame& frame, const Signal& signal, const Segment& segment) {
  const bool is_local = static_cast<Remote>(signal.remote) == Remote::LOCAL;
  return is_local ? frame.place().me() : target_of(frame.op, segment);
}
template <class Frame, class Segment>
HPMOE_DEVICE inline int64_t segment_event(const Frame& frame, const Signal& signal, const Segment& segment) {
  const bool by_expert = static_cast<Index>(signal.kind) == Index::SLOT_EXPERT;
  return signal.event + event_offset(signal.kind, frame.op, frame.task) + (by_expert ? segment.expert : 0);
}

}  // namespace hpmoe

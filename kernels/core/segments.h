// Numbered segments of rows that a transfer moves or that a completion flag covers, the same on every target. units.h
// describes Frame.
#pragma once

#include "core/decode.h"
#include "core/numbers.h"

namespace hpmoe {

// Returns the number of segments of a task; some segments may have no rows.
template <class Frame>
HPMOE_DEVICE inline int32_t num_segments(const Frame& frame) {
  const Opcode opcode = opcode_of(frame.op);
  const int32_t ep_size = frame.place().ep_size(), num_experts = frame.routed().num_local_experts();
  if (moves_copies(opcode)) {
    const bool is_all = static_cast<Domain>(frame.op.domain) == Domain::ONCE;
    return is_all ? ep_size * (num_experts - frame.routed().num_own_experts()) : 1;
  }
  if (is_exchange(opcode)) return ep_size * num_experts;
  if (is_put(opcode)) return num_task_peers(frame.op, frame.task, ep_size);
  return frame.task.row < 0 ? num_experts : 1;
}

// Returns the block of a matrix that a task of replicas moves: to the rank of the replica, or back to the owner.
template <class Frame>
HPMOE_DEVICE inline auto copy_at(const Frame& frame, int32_t i) {
  const auto& routing = frame.routed();
  using Segment = decltype(routing.segment(0, 0, 0));
  const int32_t me = frame.place().me(), own = routing.num_own_experts(), number = frame.task.row / frame.op.blocks + i;
  const auto [block, height] = params::MatrixBlock::of(frame.op);
  const int64_t k0 = frame.task.row % frame.op.blocks * int64_t{block}, rows = least(int64_t{block}, height - k0);
  if (is_back(opcode_of(frame.op))) {
    if (!routing.is_copy(me, own + number)) return Segment::of_matrix(me, me, 0, 0, 0, 0);
    const int32_t expert = routing.share(me, own + number).expert;
    const int64_t to = routing.place_of_copy(me, number) * height + k0;
    return Segment::of_matrix(me, expert / own, expert % own, rows, to, number * height + k0);
  }
  const auto copy = routing.copy(me, number);
  if (copy.host < 0) return Segment::of_matrix(me, me, 0, 0, 0, 0);
  return Segment::of_matrix(me, copy.host, own + copy.slot, rows, copy.slot * height + k0, copy.expert * height + k0);
}

template <class Frame>
HPMOE_DEVICE inline auto segment_at(const Frame& frame, int32_t i) {
  const Opcode opcode = opcode_of(frame.op);
  if (moves_copies(opcode)) return copy_at(frame, i);
  const auto& place = frame.place();
  const auto& routing = frame.routed();
  const int32_t me = place.me(), experts = routing.num_local_experts();
  const int32_t position = is_exchange(opcode) ? i / experts : position_of(frame.op, frame.task, is_put(opcode) ? i : 0);
  const bool back = goes_back(frame.op);
  const int32_t peer = place.peer(position, back);
  const int32_t source = back ? peer : me, dest = back ? me : peer;
  if (is_put(opcode)) return routing.segment_in_slot(source, dest, routing.slot(dest, frame.task.row));
  return routing.segment(source, dest, is_exchange(opcode) ? i % experts : frame.task.row < 0 ? i : frame.task.row);
}

// Returns the rank that receives a segment of an op.
template <class Segment>
HPMOE_DEVICE inline int32_t target_of(const Op& op, const Segment& segment) {
  return goes_back(op) ? segment.source : segment.dest;
}

}  // namespace hpmoe

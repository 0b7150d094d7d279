// What a task has to do, whenever it runs: whether that is anything, how many rows it has, where they go, how long its body
// takes.
#pragma once

#include <cmath>

#include "cpu/frame.h"
#include "full_slots.h"
#include "simulate.h"

namespace hpmoe {

// Of tokens that came once, the rows that the rank's experts, or those of its node, have of each in the mean; 0 where none
// did.
inline double rows_of_token(const Frame& frame) {
  const Routing* experts = frame.routing ? frame.routing->experts() : nullptr;
  const auto received = experts ? static_cast<double>(frame.routing->received(frame.rank)) : 0;
  if (received == 0) return 0;
  const Routing* passed_on = frame.routing->passed_on();
  return static_cast<double>(passed_on ? passed_on->relayed(frame.rank) : experts->received(frame.rank)) / received;
}

inline bool leaves_node(const HpmoeMachine& machine, int32_t from, int32_t to) {
  return to / machine.node_size != from / machine.node_size;
}

// Whether a worker stands for the whole device while it runs an operation: an exchange is a collective.
inline bool is_wide(const Op& op) {
  const auto opcode = opcode_of(op);
  return is_exchange(opcode) || (moves_copies(opcode) && static_cast<Domain>(op.domain) == Domain::ONCE);
}

// Rows of a task that is no transfer; of a launch of the unfused program those that it lays out: none, those sent or those
// received.
inline double own_rows(const Frame& frame) {
  if (!is_launch(opcode_of(frame.op))) return static_cast<double>(frame.unit.rows);
  const Routing* routing = frame.routing;
  switch (routing ? params::Launched::of(frame.op).rows : LaidOut::NO_ROWS) {
    case LaidOut::SENT_ROWS: return static_cast<double>(routing->all_kept_entries(frame.rank));
    case LaidOut::RECEIVED_ROWS: return static_cast<double>(routing->received(frame.rank));
    default: return 0;
  }
}

// Returns true if a task with `rows` rows has no work. A transfer may move no row of its slot, but a sum over an expert
// without rows writes zeros.
inline bool is_empty(const Frame& frame, double rows) {
  if (rows > 0) return false;
  const bool has_unit = frame.unit.rows > 0 || static_cast<Domain>(frame.op.domain) == Domain::EXPERTS;
  return is_transfer(opcode_of(frame.op)) || !has_unit;
}

// Returns true if a task has no rows and no signals.
inline bool does_nothing(const Frame& frame, const std::vector<FullSlots>& full) {
  const auto opcode = opcode_of(frame.op);
  const bool has_rows = is_transfer(opcode) ? any_full_segment(frame, full, [](const Segment&) { return true; })
                                            : frame.unit.rows > 0 || is_launch(opcode) ||
                                                  static_cast<Domain>(frame.op.domain) == Domain::EXPERTS;
  if (has_rows) return false;
  for (const Signal& signal : frame.image.signals_of(frame.task))
    if (static_cast<Amount>(signal.amount) == Amount::COUNT) return false;
  return true;
}

// Microseconds of worker time of a task with `rows` rows if it has L2 and memory to itself.
inline double core_us(const HpmoeWork& work, double rows) {
  const auto granule = static_cast<double>(work.granule);
  const double granules = std::ceil(rows / granule) * granule;
  const bool is_few = work.skinny_rows > 0 && rows <= static_cast<double>(work.skinny_rows);
  if (is_few) return rows > 0 ? work.few_fixed + granules * work.few_row : 0;
  return work.core_fixed + granules * work.core_row;
}

}  // namespace hpmoe

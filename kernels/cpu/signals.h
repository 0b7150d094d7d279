// The counters that a finished task adds to, and the amounts. A launch and its simulation share them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/signals.h"
#include "frame.h"

namespace hpmoe {

// Calls visit(rank, event, amount) for a signal of a task with `amount` rows, or 1 for COUNT. Rows of transfers are
// signalled by segments, and rows of a FAN_OUT by their slots.
template <class Visit>
void for_each_unit_signal(const Frame& frame, Amount kind, int64_t amount, Visit visit) {
  if (amount == 0) return;
  for (const Signal& signal : frame.image.signals_of(frame.task)) {
    if (static_cast<Amount>(signal.amount) != kind || static_cast<Index>(signal.kind) == Index::ENTRY_TILE) continue;
    const int64_t event = event_of(frame, signal);
    for (int32_t i = 0; i < num_targets(frame, signal); ++i) visit(target_at(frame, signal, i), event, amount);
  }
}

// Visits the signals of the rows that a FAN_OUT has made, for each slot of an expert with such rows.
template <class Visit>
void for_each_fan_signal(const Frame& frame, Visit visit) {
  const auto slot_of = [&](const ExpertRow& row) {
    return frame.routing->experts()->expert_slots(frame.rank, row.expert).slot_of(static_cast<int32_t>(row.row));
  };
  std::vector<int32_t> slots;
  for_each_fan(frame, [&](int64_t, const std::vector<ExpertRow>& rows) {
    for (const ExpertRow& row : rows) slots.push_back(slot_of(row));
  });
  for_each_fan_padding(frame, [&](const ExpertRow& row) { slots.push_back(slot_of(row)); });
  std::sort(slots.begin(), slots.end());
  for (const Signal& signal : frame.image.signals_of(frame.task)) {
    if (static_cast<Index>(signal.kind) != Index::ENTRY_TILE) continue;
    const int64_t event = event_of(frame, signal);
    for (auto first = slots.begin(), last = first; first != slots.end(); first = last) {
      last = std::upper_bound(first, slots.end(), *first);
      visit(frame.rank, event + *first, last - first);
    }
  }
}

// Visits the signals for the rows that a task other than a transfer has made.
template <class Visit>
void for_each_row_signal(const Frame& frame, Visit visit) {
  if (fans_out(opcode_of(frame.op))) for_each_fan_signal(frame, visit);
  for_each_unit_signal(frame, Amount::ROWS, frame.unit.rows, visit);
}

// Visits the signals for the rows of one segment of a transfer.
template <class Visit>
void for_each_segment_signal(const Frame& frame, const Segment& segment, Visit visit) {
  if (segment.rows == 0) return;
  const int64_t return_entries = int64_t{frame.routing->top_k()} * frame.routing->return_tokens();
  for (const Signal& signal : frame.image.signals_of(frame.task)) {
    if (static_cast<Amount>(signal.amount) != Amount::ROWS) continue;
    const int32_t target = segment_target(frame, signal, segment);
    const int64_t event = segment_event(frame, signal, segment);
    if (static_cast<Index>(signal.kind) != Index::ENTRY_TILE) {
      visit(target, event, segment.rows);
      continue;
    }
    if (segment.padding > 0) visit(target, event, segment.padding);
    const int32_t* const entries = frame.routing->entries_of(segment);
    const auto returned = [&](int64_t row) { return entries[row] / return_entries; };
    for (int64_t row = 0, first = 0; row < segment.num_entries(); first = row) {
      while (row < segment.num_entries() && returned(row) == returned(first)) ++row;
      visit(target, event + returned(first), row - first);
    }
  }
}

}  // namespace hpmoe

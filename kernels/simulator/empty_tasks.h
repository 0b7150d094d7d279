// Which tasks a worker passes by without a look at what they wait for: those of slots past the last that has rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/frame.h"

namespace hpmoe {

// Of all routes, once all ranks have placed their rows.
class EmptyTasks {
 public:
  EmptyTasks() = default;
  EmptyTasks(const Image& image, const std::vector<Routing>& routings) : slot_of_(image.header->num_events, kNone) {
    for (int32_t i = 0; i < image.header->num_event_runs; ++i) {
      const EventRun& run = image.event_runs[i];
      if (static_cast<Extent>(run.extent) != Extent::SLOT) continue;
      for (int32_t e = run.first; e < image.end_of_run(i); ++e) slot_of_[e] = {run.route, run.index + e - run.first};
    }
    for (int32_t r = 0; r < image.header->num_routes; ++r) {
      std::vector<int32_t> used(image.header->ep_size);
      for (int32_t rank = 0; rank < image.header->ep_size; ++rank)
        while (used[rank] < image.routes[r].num_slots && routings[r].slot(rank, used[rank]).rows > 0) ++used[rank];
      most_used_.push_back(*std::max_element(used.begin(), used.end()));
      used_.push_back(std::move(used));
    }
  }

  // Whether a task of a slot without rows waits for nothing but these rows, and tells of nothing else: its events are due
  // for no rows, so that a worker that runs it does nothing and waits for nothing.
  bool has(const Image& image, const Frame& frame) const {
    const Op& op = frame.op;
    const Opcode opcode = opcode_of(op);
    if (static_cast<Domain>(op.domain) != Domain::SLOTS || is_relayed(op)) return false;
    if (is_transfer(opcode) && !is_put(opcode)) return false;
    const bool on_peers = is_put(opcode) && !goes_back(op);
    if (frame.task.row < (on_peers ? most_used_[op.route] : used_[op.route][frame.rank])) return false;
    for (const Wait& wait : image.waits_of(frame.task)) {
      if (static_cast<Index>(wait.kind) == Index::SLOT_EXPERT) return false;
      const SlotOfRoute of = slot_of_[image.event_of(wait, frame.task)];
      if (of.route != op.route || of.slot != frame.task.row) return false;
    }
    for (const Signal& signal : image.signals_of(frame.task))
      if (static_cast<Amount>(signal.amount) != Amount::ROWS) return false;
    return true;
  }

 private:
  struct SlotOfRoute {
    int32_t route, slot;
  };
  static constexpr SlotOfRoute kNone{-1, -1};

  std::vector<SlotOfRoute> slot_of_;         // [num_events], of those that count the rows of a slot
  std::vector<std::vector<int32_t>> used_;   // [num_routes][num_ranks], slots up to the last that has rows
  std::vector<int32_t> most_used_;           // [num_routes]
};

}  // namespace hpmoe

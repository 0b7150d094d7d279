// Finds tasks that a core skips without a poll: tasks of slots after the last slot with rows.
#pragma once

#include "frame.h"

namespace hpmoe {

// Keeps the result for a template until another template takes its cache entry.
class EmptyTasks {
 public:
  __aicore__ inline explicit EmptyTasks(const RankView& rank) : rank_(rank) {
    for (int32_t i = 0; i < kKept; ++i) template_[i] = -1;
  }

  // Returns true if the task at a place of the queues does nothing. The task's slot is after the last slot with rows, on
  // this rank and on the ranks that it puts rows to. It waits only for these rows, and signals nothing else.
  __aicore__ inline bool has(int32_t place) {
    const int32_t index_bits = rank_.image.header().index_bits;
    const TaskWord word = rank_.image.task_word(place);
    const int32_t number = template_of(word, index_bits), i = number % kKept;
    if (template_[i] != number) {
      template_[i] = number;
      first_place_[i] = first_empty(number);
    }
    return place_of(word, index_bits) >= first_place_[i];
  }

 private:
  static constexpr int32_t kKept = 64, kNone = 0x7FFFFFFF;

  // Returns the first place in the grid whose task is empty.
  __aicore__ inline int32_t first_empty(int32_t number) const {
    const TaskTemplate task_template = rank_.image.task_template(number);
    const Op op = rank_.image.op(task_template.op);
    if (static_cast<Domain>(op.domain) != Domain::SLOTS) return kNone;
    if (is_transfer(opcode_of(op)) && !is_put(opcode_of(op))) return kNone;
    for (int32_t i = 0; i < task_template.num_waits; ++i)
      if (!waits_for_slots(op, rank_.image.wait(task_template.first_wait + i))) return kNone;
    for (int32_t i = 0; i < task_template.num_signals; ++i)
      if (static_cast<Amount>(rank_.image.signal(task_template.first_signal + i).amount) != Amount::ROWS) return kNone;
    const int32_t of_slot = num_column_tiles(op) * (op.num_peers > 0 ? op.num_peers : 1);
    return most(num_used(op) - op.first_row, 0) * of_slot;
  }

  // Returns true if the wait's events count the rows of slots, one event for each slot.
  __aicore__ inline bool waits_for_slots(const Op& op, const Wait& wait) const {
    if (static_cast<Index>(wait.kind) != Index::UNIT) return false;
    int32_t run = 0;
    while (rank_.image.end_of_run(run) <= wait.event + op.first_row) ++run;
    const EventRun events = rank_.image.event_run(run);
    return static_cast<Extent>(events.extent) == Extent::SLOT && events.route == op.route &&
           events.index + wait.event == events.first &&
           wait.event + op.first_row + op.num_units <= rank_.image.end_of_run(run);
  }

  // Number of slots up to the last one with rows: on this rank or, if the op puts rows into slots of other ranks, on any
  // rank.
  __aicore__ inline int32_t num_used(const Op& op) const {
    RoutingTables routing;
    routing.init(rank_.image, op.route, rank_.num_aiv, rank_.args);
    if (!is_put(opcode_of(op)) || goes_back(op)) return routing.num_used_slots(rank_.me());
    int32_t used = 0;
    for (int32_t rank = 0; rank < rank_.ep_size(); ++rank) used = most(used, routing.num_used_slots(rank));
    return used;
  }

  const RankView& rank_;
  int32_t template_[kKept], first_place_[kKept];
};

}  // namespace hpmoe

// The bodies that are under way in a simulated run.
//
// A body takes its worker for a time of its own, and asks for memory and link bandwidth that it shares with whoever uses
// them at that moment; it ends when it has had all of it, which stands for double buffering.
#pragma once

#include <cstdint>
#include <vector>

#include "core/image.h"
#include "core/operands.h"
#include "happenings.h"
#include "l2.h"
#include "rates.h"
#include "simulate.h"
#include "task_work.h"

namespace hpmoe {

// Workers are numbered over all ranks.
class Bodies {
 public:
  Bodies(const Image& image, const HpmoeMachine& machine, const HpmoeWork* work, int64_t num_parts, int32_t num_bins,
         double* moved, const std::vector<FullSlots>& full, Happenings& happenings)
      : machine_(machine),
        work_(work),
        full_(full),
        num_parts_(num_parts),
        num_ranks_(image.header->ep_size),
        rates_(machine, image.header->ep_size, num_bins),
        ranks_of_l2_(rates_.has_host() ? image.header->ep_size : 1),
        caches_(image.header->ep_size / ranks_of_l2_, L2(ranks_of_l2_ * num_parts, machine.l2.bytes)),
        pending_(image.header->ep_size * image.header->num_queues),
        moved_(moved),
        happenings_(happenings) {}

  // The body of a worker's task begins; `missed` becomes the bytes that L2 did not hold. True where it has ended at once.
  bool begin(int32_t worker, const Frame& frame, double now, double& missed) {
    const HpmoeWork& work = work_of(frame);
    pending_[worker] = 1;
    const Moved moved = move_rows(worker, frame, work, now);
    const bool has_work = !is_empty(frame, moved.rows);
    const double fans = moved.rows * rows_of_token(frame) * work.core_fan;
    if (has_work) missed = touch(worker, frame, work, moved, now);
    return work_alone(worker, frame, machine_.sync.task_us + (has_work ? core_us(work, moved.rows) + fans : 0), now);
  }

  // Lets a waiting worker that has read `read` bytes of its task's weight read on; returns the bytes of this step, 0 at the
  // end.
  double read_early(int32_t worker, const Frame& frame, double read, double now) {
    const HpmoeWork& work = work_of(frame);
    const HpmoeFootprint* const end = work.footprints + work.num_footprints;
    const HpmoeFootprint* const weight = std::find_if(
        work.footprints, end, [](const HpmoeFootprint& t) { return t.part == HPMOE_WEIGHT || t.part == HPMOE_DENSE; });
    const double bytes = weight == end ? 0 : std::min<double>(kEarlyBytes, weight->fixed - read);
    if (bytes <= 0) return 0;
    pending_[worker] = 0;
    const Passed passed = caches_[frame.rank].read(frame, *weight, read, read + bytes, 0);
    demand(worker, frame, rates_.of(frame.rank, HPMOE_L2), passed.bytes, now);
    demand(worker, frame, rates_.of(frame.rank, HPMOE_MEMORY), passed.memory, now);
    return bytes;
  }

  // A part of a worker's body has ended: true where that was the last.
  bool end_part(int32_t worker) { return --pending_[worker] == 0; }

  // A shared rate has served a demand by now: calls end(worker) for each body that has ended with one.
  template <class End>
  void serve(int32_t index, double now, End end) {
    SharedRate& rate = rates_[index];
    for (int32_t worker; (worker = rate.end_one(now)) >= 0;) {
      if (end_part(worker)) end(worker);
    }
    foresee_end(index);
  }

  // What went over the rates until `end`; see simulate.h.
  void report(double end, double* totals, double* served) { rates_.report(end, totals, served); }

 private:
  const HpmoeWork& work_of(const Frame& frame) const {
    const bool is_lower = frame.task.row % frame.op.blocks == frame.op.blocks - 1;
    return work_[4 * frame.task.op + 2 * is_lower + (frame.task.cols < frame.op.tile_cols)];
  }

  // Rows that a task works on, and bytes that a transfer writes to its own rank.
  struct Moved {
    double rows, written;
  };

  Moved move_rows(int32_t worker, const Frame& frame, const HpmoeWork& work, double now) {
    const auto opcode = opcode_of(frame.op);
    if (!is_transfer(opcode)) return {own_rows(frame), 0};
    Moved moved{0, 0};
    if (is_completion_flag(opcode)) return moved;
    for_each_full_segment(frame, full_, [&](const Segment& segment) {
      send(worker, frame, segment, work, now);
      const auto rows = static_cast<double>(is_back(opcode) ? segment.num_entries() : segment.rows);
      moved.rows += rows;
      if (target_of(frame.op, segment) == frame.rank) moved.written += rows * work.link_row;
    });
    return moved;
  }

  // Puts a segment on the links between its two ranks, and in the L2 of the other, which brings it to memory.
  void send(int32_t worker, const Frame& frame, const Segment& segment, const HpmoeWork& work, double now) {
    const int32_t to = target_of(frame.op, segment);
    const double bytes = static_cast<double>(segment.num_entries()) * work.link_row;
    moved_[int64_t{frame.rank} * num_ranks_ + to] += bytes;
    if (work.landing.row > 0) {
      L2& cache = caches_[to / ranks_of_l2_];
      const double landed = cache.land(frame, segment, to, work.landing, to % ranks_of_l2_ * num_parts_);
      demand(worker, frame, rates_.of(to, HPMOE_MEMORY), landed, now);
    }
    if (to == frame.rank) return;
    const bool leaves = leaves_node(machine_, frame.rank, to);
    demand(worker, frame, rates_.of(frame.rank, leaves ? HPMOE_NODE_EGRESS : HPMOE_EGRESS), bytes, now);
    demand(worker, frame, rates_.of(to, leaves ? HPMOE_NODE_INGRESS : HPMOE_INGRESS), bytes, now);
  }

  // Everything goes through L2, rows that a transfer writes to its own rank too; what L2 does not hold comes from memory.
  double touch(int32_t worker, const Frame& frame, const HpmoeWork& work, const Moved& moved, double now) {
    L2& cache = caches_[frame.rank / ranks_of_l2_];
    const Passed passed = cache.pass(frame, work, moved.rows, frame.rank % ranks_of_l2_ * num_parts_);
    demand(worker, frame, rates_.of(frame.rank, HPMOE_L2), passed.bytes + moved.written, now);
    demand(worker, frame, rates_.of(frame.rank, HPMOE_MEMORY), passed.memory, now);
    return passed.missed;
  }

  // The part of a task that is its worker's alone; where workers share cores, as much of theirs as there is.
  bool work_alone(int32_t worker, const Frame& frame, double us, double now) {
    if (!rates_.has_host()) {
      happenings_.foresee(now + us, Happening::CORE, worker);
      return false;
    }
    demand(worker, frame, rates_.cores(), us, now);
    return end_part(worker);
  }

  void demand(int32_t worker, const Frame& frame, int32_t rate, double amount, double now) {
    if (amount <= 0) return;
    ++pending_[worker];
    rates_[rate].begin(now, amount, worker, rate != rates_.cores() && is_wide(frame.op));
    foresee_end(rate);
  }

  void foresee_end(int32_t index) {
    const SharedRate& rate = rates_[index];
    if (rate.is_idle())
      happenings_.forget_rate(index);
    else
      happenings_.foresee_rate(rate.next_end(), index);
  }

  const HpmoeMachine& machine_;
  const HpmoeWork* const work_;
  const std::vector<FullSlots>& full_;  // of each route
  const int64_t num_parts_;       // of a rank's arrays
  const int32_t num_ranks_;
  Rates rates_;
  const int32_t ranks_of_l2_;     // those that have one L2
  std::vector<L2> caches_;        // [num_ranks / ranks_of_l2]
  std::vector<int32_t> pending_;  // parts of each worker's body that have not ended
  double* const moved_;  // see simulate.h
  Happenings& happenings_;
};

}  // namespace hpmoe

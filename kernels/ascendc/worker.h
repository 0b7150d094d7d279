// The loop of a core over its queue: wait for a task's events, run its body, signal.
//
// Pipes are not drained between tasks. Signals are ordered after a task's stores, and a task that uses what an earlier
// one still writes waits for it (unsettled.h). An AIC looks ahead: during the last step of a task it loads the first rows
// of the next one if all events of the next have occurred.
#pragma once

#include "core/signals.h"
#include "counters.h"
#include "empty_tasks.h"
#include "task_segments.h"
#include "unsettled.h"

namespace hpmoe {

// Unit is CubeUnit or VectorUnit; tile_bodies.h has the functions of a unit.
template <class Unit>
class Worker {
 public:
  // status: the numbers of an error before the queue begins.
  __aicore__ inline Worker(const RankView& rank, const Counters& counters, Unit& unit, int32_t queue, const Status& status)
      : rank_(rank),
        counters_(counters),
        unit_(unit),
        queue_(queue),
        runs_(rank.image, rank.args.buffers),
        spare_(rank),
        status_(status) {}

  // Waits for the prologue, and reads the first templates of the queue meanwhile.
  __aicore__ inline Code wait_until_ready() {
    const int32_t ready = counters_.prologue(kReady), target = wrapping_product(rank_.args.epoch, rank_.num_aiv);
    first_ = rank_.image.queue_start(queue_);
    last_ = rank_.image.queue_start(queue_ + 1);
    int32_t number = -1;
    for (int32_t place = first_; place < last_ && runs_.has_capacity(); ++place) {
      const int32_t before = number;
      number = template_of(rank_.image.task_word(place), rank_.image.header().index_bits);
      if (number == before) continue;
      if (counters_.has_reached(ready, target)) break;
      (void)runs_.find(number, nullptr);
    }
    const WaitEnd end = counters_.wait(ready, target);
    if (end != WaitEnd::MET) return code_of(end);
    if (!Unit::kLooksAhead) forget_all_lines(rank_.args.tables);  // an AIC has read no line that others write
    unit_.load_after_poll();
    return Code::OK;
  }

  __aicore__ inline void run_queue() {
    for (place_ = first_; place_ < last_; ++place_) {
      const Code code = run_place(place_ + 1 < last_);
      if (code != Code::OK) {
        status_.task = place_;
        return fail(code);
      }
      if (turns_[place_ % 2].frame.unit.rows == 0) pass_empty_tasks();
    }
  }

  // Writes the core's position and signals the failure to every rank. A SLOT_OVERFLOW is signalled only to this rank:
  // every rank finds it and reports its cause.
  __aicore__ inline void fail(Code code) {
    const bool is_known = code == Code::SLOT_OVERFLOW;
    status_.code = static_cast<int32_t>(code);
    if (!is_known) status_.rank = rank_.args.rank;
    status_.queue = queue_;
    leave_status();
    drain_pipes();
    if (code == Code::ABORTED_PEER) return;
    const int32_t first = is_known ? rank_.me() : 0, last = is_known ? first + 1 : rank_.ep_size();
    for (int32_t rank = first; rank < last; ++rank)
      unit_.add_to_counter(address_on(counters_.address(counters_.prologue(kFailed)), rank), 1);
  }

 private:
  struct EarlyReads {
    Unit& unit;
    bool is_early;
    __aicore__ inline void operator()() const {
      if (is_early) read_early(unit);
    }
  };
  struct Turn {
    int32_t place = -1, route = -1;
    Frame frame{};
    bool has_begun = false;
  };

  // Skips empty tasks. It runs only after a task without rows, so tasks with rows pay nothing.
  __aicore__ inline void pass_empty_tasks() {
    while (place_ + 1 < last_ && spare_.has(place_ + 1)) ++place_;
  }

  __aicore__ inline Code run_place(bool has_next) {
    Turn& turn = turns_[place_ % 2];
    Turn& next = turns_[(place_ + 1) % 2];
    if (turn.place != place_) read_task(turn, place_);
    if (has_next) read_ahead(next);
    if (!turn.has_begun) {
      const Code code = wait_for_task(turn);
      if (code != Code::OK) return code;
      if (unsettled_.touches(turn.frame) || !unsettled_.has_capacity_for(turn.frame)) settle();
      const Code begun = begin(turn);
      if (begun != Code::OK) return begun;
    }
    const Code code = run_task(unit_, turn.frame);
    if (code != Code::OK) return code;
    if (Unit::kLooksAhead && has_next) begin_ahead(next);
    finish_task(unit_);
    signal(turn);
    return Code::OK;
  }

  __aicore__ inline void read_task(Turn& turn, int32_t place) {
    HPMOE_DECODES(1);
    const TaskWord word = rank_.image.task_word(place);
    const int32_t index_bits = rank_.image.header().index_bits, number = template_of(word, index_bits);
    Frame& frame = turn.frame;
    if (turn.place < 0 || frame.run->number != number) take_run(turn, turns_[(place + 1) % 2], number);
    frame.task = task_at(frame.op, frame.run->task_template.op, number, place_of(word, index_bits), frame.run->column_tiles);
    frame.unit = find_unit<hpmoe::Unit>(frame);
    turn.place = place;
    turn.has_begun = false;
  }
  // Switches a turn to the tasks of another template.
  __aicore__ inline void take_run(Turn& turn, const Turn& other, int32_t number) {
    Frame& frame = turn.frame;
    frame.rank = &rank_;
    frame.run = runs_.find(number, other.frame.run);
    frame.op = frame.run->op;
    const int32_t route = frame.op.route;
    if (route < 0 || route == turn.route) return;
    if (route == other.route) {
      frame.routing = other.frame.routing;
    } else {
      frame.routing.init(rank_.image, route, rank_.num_aiv, rank_.args);
    }
    turn.route = route;
  }
  // Decodes the next task before the current one is waited for, and preloads the targets of its waits.
  __aicore__ inline void read_ahead(Turn& next) {
    HPMOE_DECODES(0);
    rank_.image.preload_tasks_after(place_ + 1);
    read_task(next, place_ + 1);
    for (int32_t i = 0; i < least(next.frame.run->task_template.num_waits, TaskRun::kMostKept); ++i)
      preload(target_of(static_cast<int32_t>(event_of(next.frame, wait_at(next, i)))));
  }

  // Begins the next task if its events have occurred. An error is reported when the task is begun again.
  __aicore__ inline void begin_ahead(Turn& next) {
    if (next.frame.unit.rows == 0) return;  // it may be an empty task
    if (has_all_events(next) && !unsettled_.touches(next.frame) && unsettled_.has_capacity_for(next.frame))
      (void)begin(next);
  }

  __aicore__ inline Code begin(Turn& turn) {
    if (turn.frame.run->task_template.num_waits > 0) unit_.load_after_poll();
    unsettled_.add(turn.frame);
    const Code code = begin_task(unit_, turn.frame);
    turn.has_begun = code == Code::OK;
    return code;
  }

  __aicore__ inline void settle() {
    drain_pipes();
    unsettled_.clear();
  }

  __aicore__ inline Wait wait_at(const Turn& turn, int32_t i) const {
    HPMOE_DECODES(0);
    return runs_.wait(*turn.frame.run, i);
  }
  __aicore__ inline Signal signal_at(const Turn& turn, int32_t i) const {
    HPMOE_DECODES(0);
    return runs_.signal(*turn.frame.run, i);
  }

  __aicore__ inline uint64_t target_of(int32_t event) const {
    return rank_.args.targets + static_cast<uint64_t>(event) * sizeof(int32_t);
  }
  __aicore__ inline int32_t threshold_of(int32_t event) const {
    HPMOE_DECODES(0);
    return global_at<int32_t>(target_of(event)).GetValue(0);
  }

  __aicore__ inline bool has_all_events(const Turn& turn) const {
    for (int32_t i = 0; i < turn.frame.run->task_template.num_waits; ++i) {
      const Wait wait = wait_at(turn, i);
      const auto event = static_cast<int32_t>(event_of(turn.frame, wait));
      if (!counters_.has_reached(event, threshold_of(event))) return false;
    }
    return true;
  }

  // Waits for a task's events; some AIC read the task's weight into L2 meanwhile.
  __aicore__ inline Code wait_for_task(const Turn& turn) {
    const bool is_early = Unit::kLooksAhead && queue_ < num_early(rank_.args.num_blocks) && reads_early(turn.frame);
    if (is_early) begin_early(unit_, turn.frame);
    for (int32_t i = 0; i < turn.frame.run->task_template.num_waits; ++i) {
      const Wait wait = wait_at(turn, i);
      const auto event = static_cast<int32_t>(event_of(turn.frame, wait));
      const WaitEnd end = counters_.wait(event, threshold_of(event), EarlyReads{unit_, is_early});
      if (end == WaitEnd::MET) continue;
      status_.event = event;
      status_.wait = turn.frame.run->task_template.first_wait + i;
      status_.value = counters_.look(event);
      status_.threshold = threshold_of(event);
      return code_of(end);
    }
    return Code::OK;
  }

  __aicore__ inline void add(int32_t rank, int32_t event, int32_t amount) {
    unit_.add_to_counter(address_on(counters_.address(event), rank), amount);
  }

  // Signals the task's events. A local signal follows the task's stores; a transfer drains all pipes first, because
  // another rank will read the rows.
  __aicore__ inline void signal(const Turn& turn) {
    const Frame& frame = turn.frame;
    const bool moves = is_transfer(opcode_of(frame.op));
    moves ? settle() : unit_.settle_stores();
    for (int32_t i = 0; i < frame.run->task_template.num_signals; ++i) {
      const Signal signal = signal_at(turn, i);
      const bool is_count = static_cast<Amount>(signal.amount) == Amount::COUNT;
      if (!moves && static_cast<Index>(signal.kind) == Index::ENTRY_TILE) {
        signal_fans(unit_, frame, counters_, event_of(frame, signal));
      } else if (moves && !is_count) {
        for (TaskSegments segments(frame); segments.next();) signal_segment(signal, frame, segments.segment());
      } else if (is_count || frame.unit.rows > 0) {
        signal_unit(signal, frame, is_count ? 1 : frame.unit.rows);
      }
    }
  }

  __aicore__ inline void signal_unit(const Signal& signal, const Frame& frame, int32_t amount) {
    const auto event = static_cast<int32_t>(event_of(frame, signal));
    for (int32_t i = 0; i < num_targets(frame, signal); ++i) add(target_at(frame, signal, i), event, amount);
  }

  __aicore__ inline void signal_segment(const Signal& signal, const Frame& frame, const Segment& segment) {
    if (segment.rows == 0) return;
    const int32_t target = segment_target(frame, signal, segment);
    const auto event = static_cast<int32_t>(segment_event(frame, signal, segment));
    if (static_cast<Index>(signal.kind) != Index::ENTRY_TILE) return add(target, event, segment.rows);
    signal_tiles(unit_, frame, segment, counters_, target, event);
  }

  // Writes the status line; the host reads the lines of all cores.
  __aicore__ inline void leave_status() {
    union {
      CoreStatus status;
      int32_t words[kStatusWords];
    } left{};
    left.status.status = status_;
    left.status.next_task = place_;
    left.status.plan = rank_.plan;
    AscendC::GlobalTensor<int32_t> line = global_at<int32_t>(rank_.args.status +
                                                             static_cast<uint64_t>(queue_) * sizeof(CoreStatus));
    for (int32_t i = 0; i < kStatusWords; ++i) line.SetValue(i, left.words[i]);
    forget_line(line);
  }

  const RankView& rank_;
  const Counters& counters_;
  Unit& unit_;
  const int32_t queue_;
  int32_t first_ = 0, last_ = 0, place_ = -1;  // of the queue
  TaskRuns runs_;
  Turn turns_[2];
  Unsettled unsettled_;
  EmptyTasks spare_;
  Status status_;
};

}  // namespace hpmoe

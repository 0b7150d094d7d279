// Discrete events: every worker of every rank walks its queue as a launch would, in modelled instead of real time.
//
// A task takes its worker for a time of its own, and asks for memory and link bandwidth that it shares with whoever uses
// them at that moment; it ends when it has had all of it, which stands for double buffering.
#include "simulate.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>
#include <vector>

#include "cpu/launch.h"
#include "cpu/prologue.h"
#include "cpu/signals.h"
#include "happenings.h"
#include "host_threads.h"
#include "l2.h"
#include "rates.h"
#include "task_work.h"
#include "worker.h"

namespace hpmoe {
namespace {

constexpr double kMostUs = 9e15;  // 285 years: as nanoseconds they fit in the trace

class Simulation {
 public:
  Simulation(const Image& image, const HpmoeRank* ranks, const HpmoeMachine& machine, const HpmoeWork* work,
             int64_t num_parts, int32_t num_bins, const Results& out)
      : image_(image), ranks_(ranks), machine_(machine), work_(work), out_(out), num_ranks_(image.header->ep_size),
        num_queues_(image.header->num_queues), rates_(machine, num_ranks_, num_bins),
        num_parts_(num_parts), caches_(num_ranks_ / sharing(), L2(sharing() * num_parts, machine.l2_bytes)),
        threads_(num_threads(), num_ranks_ * num_queues_) {}

  Status run() {
    Status status{};
    if (!route(status)) return status;
    for (int32_t t = 0; t < threads_.size(); ++t) serve(t, 0);
    for (int32_t w = 0; w < num_ranks_ * num_queues_ && !rates_.has_host(); ++w) walk(w, 0);
    double end = 0;
    while (!happenings_.is_empty()) {
      const Happening next = happenings_.take_next();
      end = next.time;
      if (!(end < kMostUs)) return {static_cast<int32_t>(Code::TIMEOUT), -1, -1, -1, -1, -1, 0, 0};
      happen(next);
    }
    rates_.report(end, out_.totals, out_.served);
    return find_stuck();
  }

 private:
  int32_t sharing() const { return rates_.has_host() ? num_ranks_ : 1; }  // ranks that have one L2
  int32_t num_threads() const {
    return static_cast<int32_t>(std::min(std::ceil(machine_.host_cores), double(num_ranks_) * num_queues_));
  }

  bool route(Status& status) {
    const Header& h = *image_.header;
    const auto is_ok = [&](int32_t rank, Code code) {
      status.code = static_cast<int32_t>(code);
      status.rank = rank;
      return code == Code::OK;
    };
    routings_.reserve(h.num_routes);
    for (int32_t i = 0; i < h.num_routes; ++i) {
      const Route& route = image_.routes[i];
      Routing& routing = routings_.emplace_back(image_, route, route.once_of >= 0 ? &routings_[route.once_of] : nullptr);
      for (int32_t r = 0; r < num_ranks_; ++r)
        if (!is_ok(r, sort_and_drop(image_, ranks_[r], route, r, routing, status))) return false;
      for (int32_t r = 0; r < num_ranks_; ++r)
        if (!is_ok(r, routing.place_rows(r, status))) return false;
    }
    for (int32_t r = 0; r < num_ranks_; ++r) {
      missing_.push_back(find_thresholds(image_, routings_, r, ranks_[r].num_tokens));
      asleep_.emplace_back(h.num_events);
      met_.emplace_back(rates_.has_host() ? h.num_events : 0);
      for (int32_t q = 0; q < num_queues_; ++q) workers_.push_back({image_.queues[q], image_.queues[q + 1]});
    }
    return true;
  }

  void happen(const Happening& h) {
    switch (h.kind) {
      case Happening::BODY: {
        const Task task = image_.task(workers_[h.who].place);
        return begin_body(h.who, frame_of(h.who / num_queues_, task), h.time);
      }
      case Happening::CORE: return end_part(h.who, h.time);
      case Happening::WAKE: return rates_.has_host() ? serve(h.who, h.time) : walk(h.who, h.time);
      case Happening::SIGNAL: return count(h);
      case Happening::RATE:
        SharedRate& rate = rates_[h.who];
        if (rate.version() != static_cast<uint32_t>(h.amount)) return;
        for (int32_t worker; (worker = rate.end_one(h.time)) >= 0;) end_part(worker, h.time);
        foresee_end(h.who);
    }
  }

  void foresee_end(int32_t index) {
    const SharedRate& rate = rates_[index];
    if (!rate.is_idle()) happenings_.foresee(rate.next_end(), Happening::RATE, index, 0, rate.version());
  }

  void demand(int32_t worker, int32_t rate, double amount, double now) {
    if (amount <= 0) return;
    ++workers_[worker].pending;
    rates_[rate].begin(now, amount, worker, rate != rates_.cores() && is_wide(op_of(workers_[worker])));
    foresee_end(rate);
  }

  // The part of a task that is its worker's alone; where workers share cores, as much of theirs as there is.
  void work_alone(int32_t w, double us, double now) {
    if (!rates_.has_host()) return happenings_.foresee(now + us, Happening::CORE, w);
    demand(w, rates_.cores(), us, now);
    end_part(w, now);
  }

  const Op& op_of(const Worker& worker) const { return image_.ops[image_.task(worker.place).op]; }

  // The task must outlive the frame.
  Frame frame_of(int32_t rank, const Task& task) const {
    const Op& op = image_.ops[task.op];
    const Routing* routing = op.route >= 0 ? &routings_[op.route] : nullptr;
    return {image_, ranks_, routing, rank, op, task, find_unit(image_, ranks_, routing, rank, op, task)};
  }

  int64_t* times(int32_t rank, int32_t place) const {
    return out_.trace + row_of(rank, place) * 3;
  }
  int64_t row_of(int32_t rank, int32_t place) const { return int64_t{rank} * image_.header->num_tasks + place; }
  static int64_t in_ns(double us) { return std::llround(us * 1e3); }

  // The worker stands before its next task: on to its body when it has looked at all waits, or asleep at the first that is
  // not met. Tasks that do nothing for anybody it runs on the way.
  void walk(int32_t w, const double clock) {
    Worker& worker = workers_[w];
    const int32_t rank = w / num_queues_;
    for (double now = clock; worker.place < worker.end || now > clock;) {
      if (worker.place == worker.end) return happenings_.foresee(now, Happening::WAKE, w);
      const Task task = image_.task(worker.place);
      const Frame frame = frame_of(rank, task);
      worker.looked = std::max(worker.looked, now);
      if (!meet_waits(worker, frame)) {
        if (now > clock) return happenings_.foresee(now, Happening::WAKE, w);
        worker.has_slept = true;
        worker.asleep_since = worker.looked;
        asleep_[rank][worker.awaited].push_back(w);
        return;
      }
      if (!does_nothing(frame)) {
        if (worker.looked > clock) return happenings_.foresee(worker.looked, Happening::BODY, w);
        return begin_body(w, frame, clock);
      }
      note_begin(worker, rank, worker.looked);
      now = worker.looked + machine_.task_us;
      go_on(worker, rank, now);
    }
  }

  // On to the worker's next task, as far as its waits are met; false where one is not, that for the `awaited` event.
  bool meet_waits(Worker& worker, const Frame& frame) const {
    const Range<Wait> waits = image_.waits_of(frame.task);
    for (; waits.first + worker.num_waits_met < waits.last; ++worker.num_waits_met) {
      const int64_t event = event_of(waits.first[worker.num_waits_met], frame);
      if (missing_[frame.rank][event] > 0) {
        worker.awaited = event;
        return false;
      }
      worker.looked += machine_.wait_us;
    }
    return true;
  }

  int64_t event_of(const Wait& wait, const Frame& frame) const {
    const bool by_expert = static_cast<Index>(wait.kind) == Index::SLOT_EXPERT;
    return image_.event_of(wait, frame.task) + (by_expert ? frame.unit.expert : 0);
  }

  // A thread of a host looks for the next task that it can run, of any worker.
  void serve(int32_t thread, double now) {
    const int32_t w = threads_.find_work(thread, [&](int32_t worker) { return can_run(worker, now); });
    if (w < 0) return;
    Worker& worker = workers_[w];
    worker.thread = thread;
    const int32_t rank = w / num_queues_;
    const Task task = image_.task(worker.place);
    double last = worker.came;
    for (const Wait& wait : image_.waits_of(task)) {
      const Met& met = met_[rank][event_of(wait, frame_of(rank, task))];
      if (met.time <= last) continue;
      last = met.time;
      worker.has_slept = true;
      worker.released_by = met.source;
    }
    happenings_.foresee(worker.looked, Happening::BODY, w);
  }

  bool can_run(int32_t w, double now) {
    Worker& worker = workers_[w];
    const int32_t rank = w / num_queues_;
    if (worker.thread >= 0 || worker.place == worker.end || worker.came > now) return false;
    if (worker.awaited >= 0 && missing_[rank][worker.awaited] > 0) return false;
    worker.looked = std::max(worker.looked, now);
    const Task task = image_.task(worker.place);
    return meet_waits(worker, frame_of(rank, task));
  }

  void note_begin(const Worker& worker, int32_t rank, double now) {
    times(rank, worker.place)[0] = in_ns(worker.came);
    times(rank, worker.place)[1] = in_ns(now);
    out_.released_by[row_of(rank, worker.place)] = worker.has_slept ? worker.released_by : -1;
  }

  // The task at the worker's place ends, the next one is before it.
  void go_on(Worker& worker, int32_t rank, double now) {
    times(rank, worker.place)[2] = in_ns(now);
    ++worker.place;
    worker.num_waits_met = 0;
    worker.awaited = -1;
    worker.has_slept = false;
    worker.came = worker.looked = now;
  }

  void begin_body(int32_t w, const Frame& frame, double now) {
    Worker& worker = workers_[w];
    note_begin(worker, frame.rank, now);
    const bool is_lower = frame.task.row % frame.op.blocks == frame.op.blocks - 1;
    const HpmoeWork& work = work_[4 * frame.task.op + 2 * is_lower + (frame.task.cols < frame.op.tile_cols)];
    const auto opcode = static_cast<Opcode>(frame.op.opcode);
    double rows = 0, written = 0;
    worker.pending = 1;
    if (is_transfer(opcode)) {
      for_each_segment(frame, [&](const Segment& segment) {
        if (opcode == Opcode::NOTIFY) return;
        send(w, frame, segment, work.link_row, now);
        rows += static_cast<double>(segment.rows);
        if (target_of(frame, segment) == frame.rank) written += static_cast<double>(segment.rows) * work.link_row;
      });
    } else {
      rows = own_rows(frame);
    }
    const bool has_work = !is_empty(frame, rows);
    const double fans = rows * rows_of_token(frame) * work.core_fan;
    if (has_work) touch(w, frame, work, rows, written, now);
    work_alone(w, machine_.task_us + (has_work ? core_us(work, rows) + fans : 0), now);
  }

  // Everything goes through L2, rows that a transfer writes to its own rank too; what L2 does not hold comes from memory.
  void touch(int32_t w, const Frame& frame, const HpmoeWork& work, double rows, double written, double now) {
    const Passed passed = caches_[frame.rank / sharing()].pass(frame, work, rows, frame.rank % sharing() * num_parts_);
    out_.missed[row_of(frame.rank, workers_[w].place)] = passed.missed;
    demand(w, rates_.of(frame.rank, HPMOE_L2), passed.bytes + written, now);
    demand(w, rates_.of(frame.rank, HPMOE_MEMORY), passed.missed, now);
  }

  // Puts a segment on the links between its two ranks.
  void send(int32_t w, const Frame& frame, const Segment& segment, double row_bytes, double now) {
    const int32_t to = target_of(frame, segment);
    if (to == frame.rank) return;
    const double bytes = static_cast<double>(segment.rows) * row_bytes;
    const bool leaves_node = to / machine_.node_size != frame.rank / machine_.node_size;
    demand(w, rates_.of(frame.rank, leaves_node ? HPMOE_NODE_EGRESS : HPMOE_EGRESS), bytes, now);
    demand(w, rates_.of(to, leaves_node ? HPMOE_NODE_INGRESS : HPMOE_INGRESS), bytes, now);
  }

  void end_part(int32_t w, double now) {
    Worker& worker = workers_[w];
    if (--worker.pending > 0) return;
    const int32_t rank = w / num_queues_;
    const Task task = image_.task(worker.place);
    const double end = signal(frame_of(rank, task), row_of(rank, worker.place), now);
    go_on(worker, rank, end);
    happenings_.foresee(end, Happening::WAKE, rates_.has_host() ? std::exchange(worker.thread, -1) : w);
  }

  // Sends the task's signals one after another; returns when the last is out.
  double signal(const Frame& frame, int64_t source, double now) {
    const auto visit = [&](int32_t target, int64_t event, int64_t amount) {
      now += machine_.signal_us;
      const bool leaves_node = target / machine_.node_size != frame.rank / machine_.node_size;
      const double way = target == frame.rank ? 0 : leaves_node ? machine_.node_remote_us : machine_.remote_us;
      happenings_.foresee(now + way + machine_.poll_us, Happening::SIGNAL, target, event, amount, source);
    };
    if (is_transfer(static_cast<Opcode>(frame.op.opcode))) {
      for_each_segment(frame, [&](const Segment& segment) { for_each_segment_signal(frame, segment, visit); });
    } else {
      for_each_row_signal(frame, visit);
    }
    for_each_unit_signal(frame, Amount::COUNT, 1, visit);
    return now;
  }

  void count(const Happening& signal) {
    int64_t& missing = missing_[signal.who][signal.event];
    missing -= signal.amount;
    if (missing > 0) return;
    if (rates_.has_host()) {
      met_[signal.who][signal.event] = {signal.time, signal.source};
      return threads_.wake_idle([&](int32_t thread) { happenings_.foresee(signal.time, Happening::WAKE, thread); });
    }
    std::vector<int32_t>& asleep = asleep_[signal.who][signal.event];
    for (int32_t w : asleep) {
      workers_[w].released_by = signal.source;
      happenings_.foresee(next_look(workers_[w], signal.time), Happening::WAKE, w);
    }
    asleep.clear();
  }

  // When a worker that is asleep looks at its event, at `now` or after it.
  double next_look(const Worker& worker, double now) const {
    if (machine_.repoll_us <= 0 || now <= worker.asleep_since) return now;
    return worker.asleep_since + std::ceil((now - worker.asleep_since) / machine_.repoll_us) * machine_.repoll_us;
  }

  // Nothing will happen any more: OK where all queues are done, else the first worker that waits.
  Status find_stuck() const {
    for (size_t w = 0; w < workers_.size(); ++w) {
      const Worker& worker = workers_[w];
      if (worker.place == worker.end) continue;
      const auto rank = static_cast<int32_t>(w) / num_queues_;
      const Task task = image_.task(worker.place);
      const int64_t event = event_of(image_.waits_of(task).first[worker.num_waits_met], frame_of(rank, task));
      const int64_t threshold = find_thresholds(image_, routings_, rank, ranks_[rank].num_tokens)[event];
      return {static_cast<int32_t>(Code::TIMEOUT), rank, static_cast<int32_t>(w) % num_queues_, worker.place,
              static_cast<int32_t>(event), worker.num_waits_met, threshold - missing_[rank][event], threshold};
    }
    return {};
  }

  const Image image_;
  const HpmoeRank* const ranks_;
  const HpmoeMachine machine_;
  const HpmoeWork* const work_;
  const Results out_;
  const int32_t num_ranks_, num_queues_;

  std::vector<Routing> routings_;
  std::vector<std::vector<int64_t>> missing_;                // [num_ranks][num_events] until the threshold
  std::vector<std::vector<std::vector<int32_t>>> asleep_;    // workers that wait for an event
  std::vector<std::vector<Met>> met_;                        // of a host: when each event had counted enough
  std::vector<Worker> workers_;                              // [num_ranks * num_queues]
  Rates rates_;
  const int64_t num_parts_;                                  // of a rank's arrays
  std::vector<L2> caches_;                                   // [num_ranks], or the one of a host
  HostThreads threads_;                                      // none where the workers are units of their own
  Happenings happenings_;
};

}  // namespace
}  // namespace hpmoe

extern "C" int hpmoe_simulate(const void* image, int64_t image_bytes, const HpmoeRank* ranks, int32_t num_ranks,
                              const HpmoeMachine* machine, const HpmoeWork* work, int64_t num_parts,
                              int64_t* trace, int64_t* released_by, double* missed, double* totals, double* served,
                              int32_t num_bins, HpmoeStatus* status) {
  using hpmoe::Code;
  if (hpmoe::find_fault(image, image_bytes) || hpmoe::Image(image).header->ep_size != num_ranks) {
    *status = {static_cast<int32_t>(Code::BAD_IMAGE), -1, -1, -1, -1, -1, 0, 0};
  } else {
    try {
      const hpmoe::Results out = {trace, released_by, missed, totals, served};
      *status = hpmoe::Simulation(hpmoe::Image(image), ranks, *machine, work, num_parts, num_bins, out).run();
    } catch (const std::exception&) {
      *status = {static_cast<int32_t>(Code::OUT_OF_MEMORY), -1, -1, -1, -1, -1, 0, 0};
    }
  }
  return status->code;
}

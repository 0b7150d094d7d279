// Discrete events: every worker of every rank walks its queue as a launch would, in modelled instead of real time.
#include "simulate.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>
#include <vector>

#include "bodies.h"
#include "cpu/prologue.h"
#include "cpu/signals.h"
#include "happenings.h"
#include "host_threads.h"
#include "empty_tasks.h"
#include "task_work.h"
#include "worker.h"

namespace hpmoe {
namespace {

constexpr double kMostUs = 9e15;  // 285 years: as nanoseconds they fit in the trace

class Simulation {
 public:
  Simulation(const Image& image, const HpmoeRank* ranks, const HpmoeMachine& machine, const HpmoeWork* work,
             int64_t num_parts, int32_t num_bins, const Results& out)
      : image_(image),
        ranks_(ranks),
        machine_(machine),
        out_(out),
        num_ranks_(image.header->ep_size),
        num_queues_(image.header->num_queues),
        has_host_(machine.host_cores > 0),
        happenings_(num_ranks_ * HPMOE_NUM_RATES + 1),
        bodies_(image_, machine_, work, num_parts, num_bins, out.moved, full_, happenings_),
        threads_(num_threads(), num_ranks_ * num_queues_) {}

  Status run() {
    Status status{};
    if (!route(status)) return status;
    for (int32_t t = 0; t < threads_.size(); ++t) serve(t, 0);
    for (int32_t w = 0; w < num_ranks_ * num_queues_ && !has_host_; ++w) walk(w, 0);
    double end = 0;
    while (!happenings_.is_empty()) {
      const Happening next = happenings_.take_next();
      end = next.time;
      if (!(end < kMostUs)) return {static_cast<int32_t>(Code::TIMEOUT), -1, -1, -1, -1, -1, 0, 0};
      happen(next);
    }
    bodies_.report(end, out_.totals, out_.served);
    return find_stuck();
  }

 private:
  int32_t num_threads() const {
    return static_cast<int32_t>(std::min(std::ceil(machine_.host_cores), double(num_ranks_) * num_queues_));
  }

  bool route(Status& status) {
    const auto is_ok = [&](int32_t rank, Code code) {
      status.code = static_cast<int32_t>(code);
      status.rank = rank;
      return code == Code::OK;
    };
    routings_ = make_routings(image_);
    for (size_t i = 0; i < routings_.size(); ++i) {
      for (int32_t r = 0; r < num_ranks_; ++r)
        if (!is_ok(r, sort_and_drop(image_, ranks_[r], image_.routes[i], r, routings_[i], status))) return false;
      for (int32_t r = 0; r < num_ranks_; ++r)
        if (!is_ok(r, routings_[i].place_rows(r, status))) return false;
      full_.emplace_back(image_, image_.routes[i], routings_[i]);
    }
    spare_ = EmptyTasks(image_, routings_);
    for (int32_t r = 0; r < num_ranks_; ++r) {
      missing_.push_back(find_thresholds(image_, routings_, r, ranks_[r].num_tokens));
      asleep_.emplace_back(image_.header->num_events, Asleep{});
      met_.emplace_back(has_host_ ? image_.header->num_events : 0);
      for (int32_t q = 0; q < num_queues_; ++q) workers_.push_back({image_.queues[q], image_.queues[q + 1]});
    }
    return true;
  }

  void happen(const Happening& h) {
    switch (h.kind()) {
      case Happening::BODY: {
        const Task task = image_.task(workers_[h.who].place);
        return begin_body(h.who, frame_of(h.who / num_queues_, task), h.time);
      }
      case Happening::CORE:
        if (bodies_.end_part(h.who)) end_body(h.who, h.time);
        return;
      case Happening::RATE: return bodies_.serve(h.who, h.time, [&](int32_t w) { end_demands(w, h.time); });
      case Happening::WAKE: return has_host_ ? serve(h.who, h.time) : wake(h.who, h.time);
      case Happening::SIGNAL: return count(h);
    }
  }

  Frame frame_of(int32_t rank, const Task& task) const { return make_frame(image_, ranks_, routings_, rank, task); }

  double* times(int32_t rank, int32_t place) const { return out_.times + row_of(rank, place) * 3; }
  int64_t row_of(int32_t rank, int32_t place) const { return int64_t{rank} * image_.header->num_tasks + place; }
  static double to_ns(double us) { return static_cast<double>(std::llround(us * 1e3)) / 1e3; }

  // The worker stands before its next task: on to its body when it has looked at all waits, or asleep at the first that is
  // not met. Tasks that do nothing for anybody it runs on the way, and passes by those of slots past the last with rows.
  void walk(int32_t w, const double clock) {
    Worker& worker = workers_[w];
    const int32_t rank = w / num_queues_;
    for (double now = clock; worker.place < worker.end || now > clock;) {
      if (worker.place == worker.end) return happenings_.foresee(now, Happening::WAKE, w);
      const Task task = image_.task(worker.place);
      const Frame frame = frame_of(rank, task);
      worker.looked = std::max(worker.looked, now);
      if (spare_.has(image_, frame)) {
        note_begin(worker, rank, now);
        now += machine_.pass_us;
        go_on(worker, rank, now);
        continue;
      }
      if (!meet_waits(worker, frame)) {
        if (now > clock) return happenings_.foresee(now, Happening::WAKE, w);
        worker.has_slept = true;
        worker.asleep_since = worker.looked;
        fall_asleep(w, asleep_[rank][worker.awaited]);
        return read_early(w, frame, clock);
      }
      if (!does_nothing(frame, full_)) {
        if (worker.looked > clock) return happenings_.foresee(worker.looked, Happening::BODY, w);
        return begin_body(w, frame, clock);
      }
      note_begin(worker, rank, worker.looked);
      now = worker.looked + machine_.sync.task_us;
      go_on(worker, rank, now);
    }
  }

  // What a worker that is asleep does where it may: a piece of its task's weight after the other, until it is woken.
  void read_early(int32_t w, const Frame& frame, double now) {
    Worker& worker = workers_[w];
    if (worker.is_reading || w % num_queues_ >= machine_.num_early || !reads_early(frame)) return;
    const double bytes = bodies_.read_early(w, frame, worker.early, now);
    worker.early += bytes;
    worker.is_reading = bytes > 0;
  }

  // It ends a piece that it has begun.
  void wake(int32_t w, double now) {
    if (!workers_[w].is_reading) return walk(w, now);
    workers_[w].was_woken = true;
  }

  void end_demands(int32_t w, double now) {
    Worker& worker = workers_[w];
    if (!std::exchange(worker.is_reading, false)) return end_body(w, now);
    if (std::exchange(worker.was_woken, false)) return walk(w, now);
    read_early(w, frame_of(w / num_queues_, image_.task(worker.place)), now);
  }

  // On to the worker's next task, as far as its waits are met; false where one is not, that for the `awaited` event.
  bool meet_waits(Worker& worker, const Frame& frame) const {
    const Range<Wait> waits = image_.waits_of(frame.task);
    for (; waits.first + worker.num_waits_met < waits.last; ++worker.num_waits_met) {
      const int64_t event = event_of(frame, waits.first[worker.num_waits_met]);
      if (missing_[frame.rank][event] > 0) {
        worker.awaited = event;
        return false;
      }
      worker.looked += machine_.sync.wait_us;
    }
    return true;
  }

  // A thread of a host looks for the next task that it can run, of any worker.
  void serve(int32_t thread, double now) {
    const int32_t w = threads_.find_work(thread, [&](int32_t worker) { return can_run(worker, now); });
    if (w < 0) return;
    Worker& worker = workers_[w];
    worker.thread = thread;
    const int32_t rank = w / num_queues_;
    const Task task = image_.task(worker.place);
    const Frame frame = frame_of(rank, task);
    double last = worker.came;
    for (const Wait& wait : image_.waits_of(task)) {
      const Met& met = met_[rank][event_of(frame, wait)];
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

  void note_begin(Worker& worker, int32_t rank, double now) {
    worker.began = to_ns(now);
    if (out_.times) {
      times(rank, worker.place)[0] = to_ns(worker.came);
      times(rank, worker.place)[1] = worker.began;
    }
    if (out_.released_by)
      out_.released_by[row_of(rank, worker.place)] = worker.has_slept ? static_cast<int32_t>(worker.released_by) : -1;
  }

  // The task at the worker's place ends, the next one is before it.
  void go_on(Worker& worker, int32_t rank, double now) {
    const double end = to_ns(now);
    if (out_.times) times(rank, worker.place)[2] = end;
    out_.busy[0] = std::max(out_.busy[0], end);
    out_.busy[1 + (&worker - workers_.data())] += end - worker.began;
    ++worker.place;
    worker.num_waits_met = 0;
    worker.awaited = -1;
    worker.has_slept = false;
    worker.early = 0;
    worker.came = worker.looked = now;
  }

  void begin_body(int32_t w, const Frame& frame, double now) {
    Worker& worker = workers_[w];
    note_begin(worker, frame.rank, now);
    double missed = 0;
    const bool has_ended = bodies_.begin(w, frame, now, missed);
    if (out_.missed) out_.missed[row_of(frame.rank, worker.place)] = missed;
    if (has_ended) end_body(w, now);
  }

  void end_body(int32_t w, double now) {
    Worker& worker = workers_[w];
    const int32_t rank = w / num_queues_;
    const Task task = image_.task(worker.place);
    const double end = signal(frame_of(rank, task), row_of(rank, worker.place), now);
    go_on(worker, rank, end);
    happenings_.foresee(end, Happening::WAKE, has_host_ ? std::exchange(worker.thread, -1) : w);
  }

  // Sends the task's signals one after another; returns when the last is out.
  double signal(const Frame& frame, int64_t source, double now) {
    const auto visit = [&](int32_t target, int64_t event, int64_t amount) {
      now += machine_.sync.signal_us;
      const bool leaves = leaves_node(machine_, frame.rank, target);
      const double latency = target == frame.rank ? 0 : leaves ? machine_.sync.node_remote_us : machine_.sync.remote_us;
      happenings_.foresee(now + latency + machine_.sync.poll_us, Happening::SIGNAL, target, event, amount, source);
    };
    if (is_transfer(opcode_of(frame.op))) {
      for_each_full_segment(frame, full_, [&](const Segment& segment) { for_each_segment_signal(frame, segment, visit); });
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
    if (has_host_) {
      met_[signal.who][signal.event] = {signal.time, signal.source};
      return threads_.wake_idle([&](int32_t thread) { happenings_.foresee(signal.time, Happening::WAKE, thread); });
    }
    Asleep& asleep = asleep_[signal.who][signal.event];
    for (int32_t w = asleep.first; w >= 0; w = std::exchange(workers_[w].next_asleep, -1)) {
      workers_[w].released_by = signal.source;
      happenings_.foresee(next_look(workers_[w], signal.time), Happening::WAKE, w);
    }
    asleep = {};
  }

  // After those who wait for the same event already.
  void fall_asleep(int32_t w, Asleep& asleep) {
    (asleep.last < 0 ? asleep.first : workers_[asleep.last].next_asleep) = w;
    asleep.last = w;
  }

  // When a worker that is asleep looks at its event, at `now` or after it.
  double next_look(const Worker& worker, double now) const {
    if (machine_.sync.repoll_us <= 0 || now <= worker.asleep_since) return now;
    return worker.asleep_since + std::ceil((now - worker.asleep_since) / machine_.sync.repoll_us) * machine_.sync.repoll_us;
  }

  // Nothing will happen any more: OK where all queues are done, else the first worker that waits.
  Status find_stuck() const {
    for (size_t w = 0; w < workers_.size(); ++w) {
      const Worker& worker = workers_[w];
      if (worker.place == worker.end) continue;
      const auto rank = static_cast<int32_t>(w) / num_queues_;
      const Task task = image_.task(worker.place);
      const int64_t event = event_of(frame_of(rank, task), image_.waits_of(task).first[worker.num_waits_met]);
      const int64_t threshold = find_thresholds(image_, routings_, rank, ranks_[rank].num_tokens)[event];
      return {static_cast<int32_t>(Code::TIMEOUT),   rank,
              static_cast<int32_t>(w) % num_queues_, worker.place,
              static_cast<int32_t>(event),           worker.num_waits_met,
              threshold - missing_[rank][event],     threshold};
    }
    return {};
  }

  const Image image_;
  const HpmoeRank* const ranks_;
  const HpmoeMachine machine_;
  const Results out_;
  const int32_t num_ranks_, num_queues_;
  const bool has_host_;  // whose cores and threads all workers share

  std::vector<Routing> routings_;
  std::vector<FullSlots> full_;                            // of each routing
  EmptyTasks spare_;
  std::vector<std::vector<int64_t>> missing_;              // [num_ranks][num_events] until the threshold
  std::vector<std::vector<Asleep>> asleep_;                // who waits for each event
  std::vector<std::vector<Met>> met_;                      // of a host: when each event had counted enough
  std::vector<Worker> workers_;                            // [num_ranks * num_queues]
  Happenings happenings_;
  Bodies bodies_;
  HostThreads threads_;                                    // none where the workers are units of their own
};

}  // namespace
}  // namespace hpmoe

extern "C" int hpmoe_simulate(const void* image, int64_t image_bytes, const HpmoeRank* ranks, int32_t num_ranks,
                              const HpmoeMachine* machine, const HpmoeWork* work, int64_t num_parts, double* times,
                              int32_t* released_by, double* missed, double* totals, double* served, double* moved,
                              double* busy, int32_t num_bins, HpmoeStatus* status) {
  using hpmoe::Code;
  if (hpmoe::find_fault(image, image_bytes) || hpmoe::Image(image).header->ep_size != num_ranks) {
    *status = {static_cast<int32_t>(Code::BAD_IMAGE), -1, -1, -1, -1, -1, 0, 0};
  } else {
    try {
      const hpmoe::Results out = {times, released_by, missed, totals, served, moved, busy};
      *status = hpmoe::Simulation(hpmoe::Image(image), ranks, *machine, work, num_parts, num_bins, out).run();
    } catch (const std::exception&) {
      *status = {static_cast<int32_t>(Code::OUT_OF_MEMORY), -1, -1, -1, -1, -1, 0, 0};
    }
  }
  return status->code;
}

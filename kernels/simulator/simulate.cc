// Discrete events: every worker of every rank walks its queue as a launch would, in modelled instead of real time.
//
// A task takes its worker for a time of its own, and asks for memory and link bandwidth that it shares with whoever uses
// them at that moment; it ends when it has had all of it, which stands for double buffering.
#include "simulate.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <queue>
#include <vector>

#include "cpu/launch.h"
#include "cpu/prologue.h"
#include "shared_rate.h"
#include "cpu/signals.h"

namespace hpmoe {
namespace {

// What happens at a time: a worker begins the body of a task, its own part of one ends, a shared rate may have served a
// demand, a signal arrives, or a worker comes to a task or back to its wait. Equal times go in the order in which they were
// foreseen.
struct Happening {
  enum Kind : int32_t { BODY, CORE, RATE, SIGNAL, WAKE };
  double time;
  int64_t order;
  Kind kind;
  int32_t who;     // worker, rate, or rank of a signal
  int64_t event;   // of a signal
  int64_t amount;  // of a signal; version of a rate
  int64_t source;  // of a signal: the task that sent it, counted over ranks and places

  bool operator>(const Happening& other) const { return time != other.time ? time > other.time : order > other.order; }
};

struct Worker {
  int32_t place, end;        // in the image's queues
  int32_t num_waits_met = 0;  // of the task at place
  int32_t pending = 0;        // parts of the running task that have not ended
  double looked = 0;          // until when it has looked at the waits met so far
  bool has_slept = false;
  double asleep_since = 0;
  int64_t released_by = -1;  // the source of the signal that ended its last sleep
};

// Which parts of a rank's arrays L2 still holds: those touched within its size of bytes.
class Cache {
 public:
  Cache(int64_t num_parts, double bytes) : size_(bytes), last_touch_(num_parts, -1.0) {}

  // Whether the part is held; from now on it is.
  bool touch(int64_t part, double bytes) {
    const double last = last_touch_[part];
    if (last < 0 || passed_ - last > size_) {
      passed_ += bytes;
      last_touch_[part] = passed_;
      return false;
    }
    last_touch_[part] = passed_;
    return true;
  }

 private:
  double size_, passed_ = 0;  // bytes that came in
  std::vector<double> last_touch_;
};

class Simulation {
 public:
  Simulation(const Image& image, const HpmoeRank* ranks, const HpmoeMachine& machine, const HpmoeWork* work,
             int64_t num_parts, int64_t* trace, int64_t* released_by, double* missed, int32_t num_bins)
      : image_(image), ranks_(ranks), machine_(machine), work_(work), trace_(trace), released_by_(released_by),
        missed_(missed),
        num_bins_(num_bins),
        num_ranks_(image.header->ep_size), num_queues_(image.header->num_queues),
        caches_(num_ranks_, Cache(num_parts, machine.l2_bytes)) {}

  Status run(double* totals, double* served) {
    Status status{};
    if (!route(status)) return status;
    for (int32_t w = 0; w < num_ranks_ * num_queues_; ++w) walk(w, 0);
    double end = 0;
    for (; !happenings_.empty();) {
      const Happening next = happenings_.top();
      happenings_.pop();
      end = next.time;
      happen(next);
    }
    for (int32_t i = 0; i < num_ranks_ * HPMOE_NUM_RATES; ++i) {
      totals[2 * i] = rates_[i].total();
      totals[2 * i + 1] = rates_[i].busy_us();
      AmountOverTime& amounts = rates_[i].over_time();
      amounts.cover(end);
      served[0] = amounts.width();
      std::copy(amounts.bins().begin(), amounts.bins().end(), served + 1 + int64_t{i} * num_bins_);
    }
    return find_stuck();
  }

 private:
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
      for (int32_t q = 0; q < num_queues_; ++q) workers_.push_back({image_.queues[q], image_.queues[q + 1]});
      const HpmoeMachine& m = machine_;
      rates_.emplace_back(m.l2_rate, m.l2_cap, num_bins_);
      rates_.emplace_back(m.memory_rate, m.memory_cap, num_bins_);
      for (int i = 0; i < 2; ++i) rates_.emplace_back(m.link_rate, m.link_cap, num_bins_);
      for (int i = 0; i < 2; ++i) rates_.emplace_back(m.node_link_rate, m.node_link_cap, num_bins_);
    }
    rates_.emplace_back(machine_.host_cores, 1.0, num_bins_);
    return true;
  }

  void foresee(double time, Happening::Kind kind, int32_t who, int64_t event = 0, int64_t amount = 0,
               int64_t source = -1) {
    happenings_.push({time, num_foreseen_++, kind, who, event, amount, source});
  }

  void happen(const Happening& h) {
    switch (h.kind) {
      case Happening::BODY: {
        const Task task = image_.task(workers_[h.who].place);
        return begin_body(h.who, frame_of(h.who / num_queues_, task), h.time);
      }
      case Happening::CORE: return end_part(h.who, h.time);
      case Happening::WAKE: return walk(h.who, h.time);
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
    if (!rate.is_idle()) foresee(rate.next_end(), Happening::RATE, index, 0, rate.version());
  }

  // Whether the worker stands for the whole device: an exchange is a collective.
  bool is_wide(int32_t worker) const {
    const Op& op = image_.ops[image_.task(workers_[worker].place).op];
    const auto opcode = static_cast<Opcode>(op.opcode);
    return is_exchange(opcode) || (moves_copies(opcode) && static_cast<Domain>(op.domain) == Domain::ONCE);
  }

  void demand(int32_t worker, int32_t rank, int32_t kind, double bytes, double now) {
    const bool is_of_all = machine_.host_cores > 0 && (kind == HPMOE_L2 || kind == HPMOE_MEMORY);
    demand(worker, (is_of_all ? 0 : rank) * HPMOE_NUM_RATES + kind, bytes, now);
  }
  void demand(int32_t worker, int32_t rate, double amount, double now) {
    if (amount <= 0) return;
    ++workers_[worker].pending;
    rates_[rate].begin(now, amount, worker, rate < num_ranks_ * HPMOE_NUM_RATES && is_wide(worker));
    foresee_end(rate);
  }

  // The part of a task that is its worker's alone; where workers share cores, as much of theirs as there is.
  void work_alone(int32_t w, double us, double now) {
    if (machine_.host_cores <= 0) return foresee(now + us, Happening::CORE, w);
    demand(w, num_ranks_ * HPMOE_NUM_RATES, us, now);
    end_part(w, now);
  }

  // The task must outlive the frame.
  Frame frame_of(int32_t rank, const Task& task) const {
    const Op& op = image_.ops[task.op];
    const Routing* routing = op.route >= 0 ? &routings_[op.route] : nullptr;
    return {image_, ranks_, routing, rank, op, task, find_unit(image_, ranks_, routing, rank, op, task)};
  }

  int64_t* times(int32_t rank, int32_t place) const {
    return trace_ + row_of(rank, place) * 3;
  }
  int64_t row_of(int32_t rank, int32_t place) const { return int64_t{rank} * image_.header->num_tasks + place; }
  static int64_t in_ns(double us) { return std::llround(us * 1e3); }

  // The worker stands before its next task: on to its body when it has looked at all waits, or asleep at the first that is
  // not met.
  void walk(int32_t w, double now) {
    Worker& worker = workers_[w];
    if (worker.place == worker.end) return;
    const int32_t rank = w / num_queues_;
    const Task task = image_.task(worker.place);
    const Frame frame = frame_of(rank, task);
    if (!worker.has_slept && worker.num_waits_met == 0) times(rank, worker.place)[0] = in_ns(worker.looked = now);
    worker.looked = std::max(worker.looked, now);
    const Range<Wait> waits = image_.waits_of(task);
    for (; waits.first + worker.num_waits_met < waits.last; ++worker.num_waits_met) {
      const Wait& wait = waits.first[worker.num_waits_met];
      const bool by_expert = static_cast<Index>(wait.kind) == Index::SLOT_EXPERT;
      const int64_t event = image_.event_of(wait, task) + (by_expert ? frame.unit.expert : 0);
      if (missing_[rank][event] > 0) {
        worker.has_slept = true;
        worker.asleep_since = now;
        asleep_[rank][event].push_back(w);
        return;
      }
      worker.looked += machine_.wait_us;
    }
    if (worker.looked > now) return foresee(worker.looked, Happening::BODY, w);
    begin_body(w, frame, now);
  }

  void begin_body(int32_t w, const Frame& frame, double now) {
    Worker& worker = workers_[w];
    times(frame.rank, worker.place)[1] = in_ns(now);
    released_by_[row_of(frame.rank, worker.place)] = worker.has_slept ? worker.released_by : -1;
    const HpmoeWork& work = work_[2 * frame.task.op + (frame.task.cols < frame.op.tile_cols)];
    const auto opcode = static_cast<Opcode>(frame.op.opcode);
    double rows = 0;
    worker.pending = 1;
    if (is_transfer(opcode)) {
      for_each_segment(frame, [&](const Segment& segment) {
        if (opcode != Opcode::NOTIFY) rows += send(w, frame, segment, work.link_row, now);
      });
    } else {
      rows = opcode == Opcode::LAUNCH ? laid_out(frame) : static_cast<double>(frame.unit.rows);
    }
    const bool is_empty = frame.unit.rows == 0 && rows == 0 && static_cast<Domain>(frame.op.domain) != Domain::EXPERTS;
    const double granules = std::ceil(rows / static_cast<double>(work.granule)) * static_cast<double>(work.granule);
    const double core = is_empty ? 0 : work.core_fixed + granules * work.core_row;
    if (!is_empty) touch(w, frame, work, rows, now);
    work_alone(w, machine_.task_us + core, now);
  }

  // Rows that a launch of the unfused program lays out: none, those sent or those received.
  double laid_out(const Frame& frame) const {
    const Routing* routing = frame.routing;
    switch (routing ? frame.op.param[0] : 0) {
      case 1: return static_cast<double>(routing->kept_entries(frame.rank, 0, ranks_[frame.rank].num_tokens));
      case 2: return static_cast<double>(routing->received(frame.rank));
      default: return 0;
    }
  }

  // Everything goes through L2; what it does not hold comes from memory too.
  void touch(int32_t w, const Frame& frame, const HpmoeWork& work, double rows, double now) {
    double bytes = 0, missed = 0;
    const auto add = [&](int64_t part, double more) {
      bytes += more;
      if (!caches_[frame.rank].touch(part, more)) missed += more;
    };
    for (int64_t i = 0; i < work.num_touches; ++i) {
      const HpmoeTouch& t = work.touches[i];
      switch (static_cast<HpmoePart>(t.part)) {
        case HPMOE_UNIT: add(t.first + frame.task.row, t.fixed + rows * t.row); break;
        case HPMOE_WEIGHT: {
          const int64_t tiles = num_column_tiles(frame.op);
          const int64_t tile = frame.op.tile_cols > 0 ? frame.task.col / frame.op.tile_cols : 0;
          add(t.first + frame.unit.expert * tiles + tile, t.fixed + rows * t.row);
          break;
        }
        case HPMOE_OF_EXPERT: add_slots_of_expert(frame, t, add); break;
        case HPMOE_TOGETHER: add(t.first, t.fixed + rows * t.row); break;
        case HPMOE_STREAM:
          bytes += t.fixed + rows * t.row;
          missed += t.fixed + rows * t.row;
      }
    }
    missed_[row_of(frame.rank, workers_[w].place)] = missed;
    demand(w, frame.rank, HPMOE_L2, bytes, now);
    demand(w, frame.rank, HPMOE_MEMORY, missed, now);
  }

  template <class Add>
  void add_slots_of_expert(const Frame& frame, const HpmoeTouch& t, Add add) const {
    const int64_t tile_rows = image_.header->tile_rows, rows = frame.unit.rows;
    int32_t slot = 0;
    while (frame.routing->slot(frame.rank, slot).expert < frame.unit.expert) ++slot;
    for (int64_t done = 0; done < rows; done += tile_rows, ++slot) {
      add(t.first + slot, static_cast<double>(std::min(tile_rows, rows - done)) * t.row);
    }
  }

  // Puts a segment on the links between its two ranks; returns its rows.
  double send(int32_t w, const Frame& frame, const Segment& segment, double row_bytes, double now) {
    const bool back = goes_back(frame.op);
    const int32_t to = back ? segment.source : segment.dest;
    const auto rows = static_cast<double>(segment.rows);
    if (to != frame.rank) {
      const bool leaves_node = to / machine_.node_size != frame.rank / machine_.node_size;
      demand(w, frame.rank, leaves_node ? HPMOE_NODE_EGRESS : HPMOE_EGRESS, rows * row_bytes, now);
      demand(w, to, leaves_node ? HPMOE_NODE_INGRESS : HPMOE_INGRESS, rows * row_bytes, now);
    }
    return rows;
  }

  void end_part(int32_t w, double now) {
    Worker& worker = workers_[w];
    if (--worker.pending > 0) return;
    const int32_t rank = w / num_queues_;
    const Task task = image_.task(worker.place);
    const double end = signal(frame_of(rank, task), row_of(rank, worker.place), now);
    times(rank, worker.place)[2] = in_ns(end);
    ++worker.place;
    worker.num_waits_met = 0;
    worker.has_slept = false;
    foresee(end, Happening::WAKE, w);
  }

  // Sends the task's signals one after another; returns when the last is out.
  double signal(const Frame& frame, int64_t source, double now) {
    const auto visit = [&](int32_t target, int64_t event, int64_t amount) {
      now += machine_.signal_us;
      const bool leaves_node = target / machine_.node_size != frame.rank / machine_.node_size;
      const double way = target == frame.rank ? 0 : leaves_node ? machine_.node_remote_us : machine_.remote_us;
      foresee(now + way + machine_.poll_us, Happening::SIGNAL, target, event, amount, source);
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
    std::vector<int32_t>& asleep = asleep_[signal.who][signal.event];
    for (int32_t w : asleep) {
      workers_[w].released_by = signal.source;
      foresee(next_look(workers_[w], signal.time), Happening::WAKE, w);
    }
    asleep.clear();
  }

  // When a worker that is asleep looks at its event, at `now` or after it.
  double next_look(const Worker& worker, double now) const {
    if (machine_.repoll_us <= 0) return now;
    return worker.asleep_since + std::ceil((now - worker.asleep_since) / machine_.repoll_us) * machine_.repoll_us;
  }

  // Nothing will happen any more: OK where all queues are done, else the first worker that waits.
  Status find_stuck() const {
    for (size_t w = 0; w < workers_.size(); ++w) {
      const Worker& worker = workers_[w];
      if (worker.place == worker.end) continue;
      const auto rank = static_cast<int32_t>(w) / num_queues_;
      const Task task = image_.task(worker.place);
      const Wait& wait = image_.waits_of(task).first[worker.num_waits_met];
      const bool by_expert = static_cast<Index>(wait.kind) == Index::SLOT_EXPERT;
      const int64_t event = image_.event_of(wait, task) + (by_expert ? frame_of(rank, task).unit.expert : 0);
      const int64_t threshold = find_thresholds(image_, routings_, rank, ranks_[rank].num_tokens)[event];
      return {static_cast<int32_t>(Code::TIMEOUT), rank, static_cast<int32_t>(w) % num_queues_, worker.place, static_cast<int32_t>(event),
              worker.num_waits_met, threshold - missing_[rank][event], threshold};
    }
    return {};
  }

  const Image image_;
  const HpmoeRank* const ranks_;
  const HpmoeMachine machine_;
  const HpmoeWork* const work_;
  int64_t* const trace_;
  int64_t* const released_by_;
  double* const missed_;
  const int32_t num_bins_;
  const int32_t num_ranks_, num_queues_;

  std::vector<Routing> routings_;
  std::vector<std::vector<int64_t>> missing_;                // [num_ranks][num_events] until the threshold
  std::vector<std::vector<std::vector<int32_t>>> asleep_;    // workers that wait for an event
  std::vector<Worker> workers_;                              // [num_ranks * num_queues]
  std::vector<SharedRate> rates_;                            // [num_ranks * HPMOE_NUM_RATES], then that of host_cores
  std::vector<Cache> caches_;                                // [num_ranks]
  std::priority_queue<Happening, std::vector<Happening>, std::greater<Happening>> happenings_;
  int64_t num_foreseen_ = 0;
};

}  // namespace
}  // namespace hpmoe

extern "C" int hpmoe_simulate(const void* image, int64_t image_bytes, const HpmoeRank* ranks, int32_t num_ranks,
                              const HpmoeMachine* machine, const HpmoeWork* work, int64_t num_parts,
                              int64_t* trace, int64_t* released_by, double* missed, double* totals, double* served, int32_t num_bins,
                              HpmoeStatus* status) {
  using hpmoe::Code;
  if (hpmoe::find_fault(image, image_bytes) || hpmoe::Image(image).header->ep_size != num_ranks) {
    *status = {static_cast<int32_t>(Code::BAD_IMAGE), -1, -1, -1, -1, -1, 0, 0};
  } else {
    try {
      *status = hpmoe::Simulation(hpmoe::Image(image), ranks, *machine, work, num_parts, trace, released_by, missed,
                              num_bins)
                    .run(totals, served);
    } catch (const std::exception&) {
      *status = {static_cast<int32_t>(Code::OUT_OF_MEMORY), -1, -1, -1, -1, -1, 0, 0};
    }
  }
  return status->code;
}

#include "launch.h"

#include <algorithm>
#include <chrono>
#include <new>

#include "frame.h"
#include "prologue.h"
#include "signals.h"

namespace hpmoe {
namespace {

constexpr int kSpins = 200;

Code do_nothing(const Frame&) { return Code::OK; }

Body find_body(Opcode opcode) {
  switch (opcode) {
    case Opcode::REDUCE: return reduce_entries;
    case Opcode::GMM: return gmm;
    case Opcode::WGRAD: return wgrad;
    case Opcode::MAP: return map;
    case Opcode::SWIGLU: return swiglu;
    case Opcode::SWIGLU_GRAD: return swiglu_grad;
    case Opcode::ROW_REDUCE: return row_reduce;
    case Opcode::ROW_DOT: return row_dot;
    case Opcode::COL_SUM: return col_sum;
    case Opcode::GATHER: return gather;
    case Opcode::KEEP: return keep_entries;
    case Opcode::DROP_COUNTS: return drop_counts;
    case Opcode::LAUNCH: return do_nothing;
    default: return nullptr;
  }
}

Status make_status(Code code, int32_t rank, int32_t queue, int32_t task) {
  return {static_cast<int32_t>(code), rank, queue, task, -1, -1, 0, 0};
}

int64_t in_nanoseconds(double seconds) {
  constexpr double kMost = 1e9;  // some thirty years: infinity is a timeout too
  return static_cast<int64_t>((seconds < kMost ? seconds > 0 ? seconds : 0 : kMost) * 1e9);
}

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

int64_t now_ns() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

Launch::Launch(const void* image, const HpmoeRank* ranks, double timeout_s, int64_t* trace,
               const InterruptWatch& watch)
    : image_(image),
      ranks_(ranks, ranks + image_.header->ep_size),
      timeout_ns_(in_nanoseconds(timeout_s)),
      trace_(trace),
      watch_(watch),
      states_(image_.header->ep_size) {
  const Header& h = *image_.header;
  routings_.reserve(h.num_routes);
  for (int32_t i = 0; i < h.num_routes; ++i) routings_.emplace_back(image_.routes[i], h.ep_size, h.tile_rows);
}

Status Launch::run() {
  start_workers();
  for (std::thread& worker : workers_) worker.join();
  if (status_.code == static_cast<int32_t>(Code::TIMEOUT)) status_ = find_lost_signal(image_, stands_, status_);
  begin_epoch();
  return status_;
}

void Launch::start_workers() {
  const Header& h = *image_.header;
  workers_.reserve(static_cast<size_t>(h.ep_size) * h.num_queues);
  last_progress_ns_.store(now_ns(), std::memory_order_relaxed);
  for (int32_t rank = 0; rank < h.ep_size; ++rank) {
    for (int32_t queue = 0; queue < h.num_queues; ++queue) {
      stands_.push_back({rank, queue, image_.queues[queue], make_status(Code::OK, rank, queue, -1)});
    }
  }
  for (int32_t rank = 0; rank < h.ep_size; ++rank) {
    for (int32_t queue = 0; queue < h.num_queues; ++queue) {
      try {
        workers_.emplace_back(&Launch::work, this, rank, queue);
      } catch (const std::exception&) {  // the system gives no more threads
        return fail(make_status(Code::OUT_OF_MEMORY, rank, queue, -1));
      }
    }
  }
}

void Launch::begin_epoch() {
  for (int32_t rank = 0; rank < image_.header->ep_size; ++rank) {
    for (int32_t e = 0; e < image_.header->num_events; ++e) {
      const int64_t value = ranks_[rank].counters[e] - ranks_[rank].bases[e];
      if (!failed_ && value != states_[rank].thresholds[e]) {
        Status status = make_status(Code::WRONG_COUNT, rank, -1, -1);
        status.event = e;
        status.value = value;
        status.threshold = states_[rank].thresholds[e];
        fail(status);
      }
      ranks_[rank].bases[e] += value;  // also after a failure: the next launch starts from what is there
    }
  }
}

void Launch::work(int32_t rank, int32_t queue) {
  try {
    run_queue(rank, queue);
  } catch (const std::exception&) {
    fail(make_status(Code::OUT_OF_MEMORY, rank, queue, -1));
  }
}

void Launch::run_queue(int32_t rank, int32_t queue) {
  if (queue == 0) {
    if (!prepare(rank)) return;
  } else {
    const Code code = wait_until([&] { return states_[rank].is_ready.load(std::memory_order_acquire); });
    if (code != Code::OK) return fail(make_status(code, rank, queue, -1));
  }
  for (int32_t task = image_.queues[queue]; task < image_.queues[queue + 1]; ++task) {
    if (watch_.is_interrupted()) return fail(make_status(Code::INTERRUPTED, rank, queue, task));
    run_task(rank, queue, task);
    if (failed_.load(std::memory_order_relaxed)) return;
    stand_of(rank, queue).next_task = task + 1;
    last_progress_ns_.store(now_ns(), std::memory_order_relaxed);
  }
}

bool Launch::meet(int32_t rank, std::atomic<int32_t>& arrived) {
  arrived.fetch_add(1, std::memory_order_acq_rel);
  const Code code = wait_until([&] { return arrived.load(std::memory_order_acquire) == image_.header->ep_size; });
  if (code != Code::OK) fail(make_status(code, rank, 0, -1));
  return code == Code::OK;
}

bool Launch::prepare(int32_t rank) {
  const int64_t num_tokens = ranks_[rank].num_tokens;
  Status status = make_status(Code::OK, rank, 0, -1);
  const auto is_ok = [&](Code code) {
    status.code = static_cast<int32_t>(code);
    if (code != Code::OK) fail(status);
    return code == Code::OK;
  };
  if (!routings_.empty()) {
    for (size_t i = 0; i < routings_.size(); ++i) {
      if (!is_ok(sort_and_drop(image_, ranks_[rank], image_.routes[i], rank, routings_[i], status))) return false;
    }
    if (!meet(rank, sorted_)) return false;
    for (Routing& routing : routings_) {
      if (!is_ok(routing.place_rows(rank, status))) return false;
    }
    if (!meet(rank, placed_)) return false;
  }
  states_[rank].thresholds = find_thresholds(image_, routings_, rank, num_tokens);
  states_[rank].is_ready.store(true, std::memory_order_release);
  return true;
}

void Launch::run_task(int32_t rank, int32_t queue, int32_t index) {
  const Task task = image_.task(index);
  const Op& op = image_.ops[task.op];
  const Routing* routing = op.route >= 0 ? &routings_[op.route] : nullptr;
  const Unit unit = find_unit(image_, ranks_.data(), routing, rank, op, task);
  const Frame frame{image_, ranks_.data(), routing, rank, op, task, unit};
  int64_t* const times = trace_ ? trace_ + (int64_t{rank} * image_.header->num_tasks + index) * 3 : nullptr;
  if (times) times[0] = now_ns();
  if (!wait_for_task(rank, queue, index, task, unit.expert)) return;
  if (times) times[1] = now_ns();
  const auto opcode = static_cast<Opcode>(op.opcode);
  const auto add = [&](int32_t target, int64_t event, int64_t amount) {
    add_to_counter(ranks_[target].counters + event, amount);
  };
  if (is_transfer(opcode)) {
    for_each_segment(frame, [&](const Segment& segment) {
      if (opcode != Opcode::NOTIFY) copy_segment(frame, segment);
      for_each_segment_signal(frame, segment, add);
    });
  } else {
    const bool is_empty = unit.rows == 0 && static_cast<Domain>(op.domain) != Domain::EXPERTS;
    const Code code = is_empty ? Code::OK : find_body(opcode)(frame);
    if (code != Code::OK) return fail(make_status(code, rank, queue, index));
    for_each_unit_signal(frame, Amount::ROWS, unit.rows, add);
  }
  for_each_unit_signal(frame, Amount::COUNT, 1, add);
  if (times) times[2] = now_ns();
}

bool Launch::wait_for_task(int32_t rank, int32_t queue, int32_t index, const Task& task, int32_t expert) {
  for (const Wait& wait : image_.waits_of(task)) {
    const bool by_expert = static_cast<Index>(wait.kind) == Index::SLOT_EXPERT;
    const int64_t event = image_.event_of(wait, task) + (by_expert ? expert : 0);
    const int64_t* counter = ranks_[rank].counters + event;
    const int64_t base = ranks_[rank].bases[event], threshold = states_[rank].thresholds[event];
    const Code code = wait_until([&] { return read_counter(counter) - base >= threshold; });
    if (code == Code::OK) continue;
    const auto number = static_cast<int32_t>(&wait - image_.waits);
    Status& wait_state = stand_of(rank, queue).wait;
    wait_state = {static_cast<int32_t>(code), rank, queue, index, static_cast<int32_t>(event), number,
                  read_counter(counter) - base, threshold};
    fail(wait_state);
    return false;
  }
  return true;
}

template <class Ready>
Code Launch::wait_until(Ready ready) {
  for (int i = 0; i < kSpins; ++i) {
    if (ready()) return Code::OK;
    pause_briefly();
  }
  const int64_t begin = now_ns();
  while (!ready()) {
    if (failed_.load(std::memory_order_relaxed)) return Code::ABORTED_PEER;
    if (watch_.is_interrupted()) return Code::INTERRUPTED;
    if (now_ns() - std::max(begin, last_progress_ns_.load(std::memory_order_relaxed)) > timeout_ns_) return Code::TIMEOUT;
    std::this_thread::yield();
  }
  return Code::OK;
}

void Launch::fail(const Status& status) {
  if (status.code == static_cast<int32_t>(Code::ABORTED_PEER)) return;  // the one who failed has said why
  if (!failed_.exchange(true, std::memory_order_acq_rel)) status_ = status;
}

}  // namespace hpmoe

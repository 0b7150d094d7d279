#include "launch.h"

#include <algorithm>
#include <exception>

#include "arithmetic.h"
#include "bodies.h"
#include "core/stuck.h"
#include "prologue.h"
#include "signals.h"
#include "thread_pool.h"

namespace hpmoe {
namespace {

Status make_status(Code code, int32_t rank, int32_t queue, int32_t task) {
  return {static_cast<int32_t>(code), rank, queue, task, -1, -1, 0, 0};
}

}  // namespace

Launch::Launch(const Image& image, Peers& peers, double timeout_s, const Record& record, const InterruptWatch& watch)
    : image_(image),
      peers_(peers),
      record_(record),
      watch_(watch),
      watchdog_(timeout_s, watch, failed_, peers.link()),
      routings_(make_routings(image_)),
      states_(image_.header->ep_size),
      sorting_{peers.first(), peers.last()},
      placing_{0, peers.size()},
      counting_{peers.first(), peers.last()},
      workers_(static_cast<size_t>(peers.num_served()) * image_.header->num_queues) {}

Status Launch::run(int32_t num_threads) {
  peers_.begin_counting(image_.header->num_events);  // a failed launch, or a fork, may have left other values
  make_workers();
  serve_all(std::min(num_threads, static_cast<int32_t>(workers_.size())));
  if (peers_.link()) await_signals();
  if (status_.code == static_cast<int32_t>(Code::TIMEOUT)) status_ = diagnose(status_);
  if (status_.code == static_cast<int32_t>(Code::INTERRUPTED)) {
    status_.task = workers_of(status_.rank)[status_.queue].next_task;
  }
  check_counts();
  return peers_.end(status_);
}

void Launch::make_workers() {
  const int32_t num_queues = image_.header->num_queues;
  int32_t num_unfinished = 0;
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    worker.rank = peers_.first() + static_cast<int32_t>(i) / num_queues;
    worker.queue = static_cast<int32_t>(i) % num_queues;
    worker.next_task = image_.queues[worker.queue];
    num_unfinished += worker.next_task < image_.queues[worker.queue + 1];
  }
  num_unfinished_.store(num_unfinished, std::memory_order_relaxed);
}

void Launch::serve_all(int32_t num_threads) {
  watchdog_.note_progress(now_ns());
  ThreadPool pool([this, num_threads](int32_t thread) { serve(thread, num_threads); });
  for (int32_t thread = 1; thread < num_threads; ++thread) {
    if (!pool.start(thread)) return fail(make_status(Code::OUT_OF_MEMORY, -1, -1, -1));
  }
  if (num_threads > 0) pool.work();
}

// Waits for the last signals of other processes. Afterwards no process writes to the arrays of the ranks served here.
void Launch::await_signals() {
  for (int32_t rank = peers_.first(); rank < peers_.last() && !failed_; ++rank) {
    const std::vector<int64_t>& thresholds = states_[rank].thresholds;
    int32_t e = 0;
    const Code code = watchdog_.wait_until([&] {
      while (e < image_.header->num_events && peers_.counted(rank, e) >= thresholds[e]) ++e;
      return e == image_.header->num_events;
    });
    if (code != Code::OK) fail(make_status(code, rank, 0, -1));
  }
}

void Launch::check_counts() {
  for (int32_t rank = peers_.first(); rank < peers_.last() && !failed_; ++rank) {
    for (int32_t e = 0; e < image_.header->num_events; ++e) {
      const int64_t value = peers_.counted(rank, e);
      if (value == states_[rank].thresholds[e]) continue;
      Status status = make_status(Code::WRONG_COUNT, rank, -1, -1);
      status.event = e;
      status.value = value;
      status.threshold = states_[rank].thresholds[e];
      return fail(status);
    }
  }
}

void Launch::serve(int32_t thread, int32_t num_threads) {
  const DefaultArithmetic while_serving;
  try {
    if (!prepare(thread)) return;
    const auto has_ended = [&] { return num_unfinished_.load(std::memory_order_relaxed) == 0; };
    while (!failed_.load(std::memory_order_relaxed) && !has_ended()) {
      const Code code = watchdog_.wait_until([&] { return advance_any(thread, num_threads) || has_ended(); });
      if (code != Code::OK) return fail(make_status(code, workers_[thread].rank, workers_[thread].queue, -1));
    }
  } catch (const std::exception&) {
    fail(make_status(Code::OUT_OF_MEMORY, workers_[thread].rank, workers_[thread].queue, -1));
  }
}

// Calls `act` for every route of every rank; returns when all threads are done.
template <class Do>
bool Launch::take_step(Step& step, Do act) {
  for (int32_t rank; (rank = step.first + step.num_taken.fetch_add(1, std::memory_order_relaxed)) < step.last;) {
    for (size_t i = 0; i < routings_.size(); ++i) {
      Status status = make_status(Code::OK, rank, 0, -1);
      const Code code = act(rank, i, status);
      if (code == Code::OK) continue;
      status.code = static_cast<int32_t>(code);
      fail(status);
      return false;
    }
    step.num_done.fetch_add(1, std::memory_order_seq_cst);
  }
  if (peers_.link()) peers_.link()->wake(peers_.first());
  return watchdog_.wait_for_threads([&] { return step.is_done(); }) == Code::OK;
}

// The first thread meets the other processes and alone reports their failures.
bool Launch::meet(int32_t thread) {
  if (!peers_.link()) return true;
  if (thread > 0) return watchdog_.wait_for_threads([this] { return has_met_.load(std::memory_order_seq_cst); }) == Code::OK;
  Status status = make_status(Code::OK, peers_.first(), 0, -1);
  const Code code = peers_.meet(routings_, watch_, status);
  if (code == Code::OK) {
    watchdog_.note_progress(now_ns());
    has_met_.store(true, std::memory_order_seq_cst);
  } else {
    status.code = static_cast<int32_t>(code);
    fail(status);
  }
  peers_.link()->wake(peers_.first());
  return code == Code::OK;
}

bool Launch::prepare(int32_t thread) {
  const auto sort = [&](int32_t rank, size_t i, Status& status) {
    return sort_and_drop(image_, peers_.ranks()[rank], image_.routes[i], rank, routings_[i], status);
  };
  const auto place = [&](int32_t rank, size_t i, Status& status) {
    const auto route = static_cast<int32_t>(i);
    status.wait = route;
    const Code code = routings_[i].place_rows(rank, status);
    return code == Code::OK ? check_row_capacity(peers_.ranks()[rank], route, routings_[i].received(rank), status) : code;
  };
  if (!routings_.empty() && !take_step(sorting_, sort)) return false;
  if (!meet(thread)) return false;
  if (!routings_.empty() && !take_step(placing_, place)) return false;
  Step& step = counting_;
  for (int32_t rank; (rank = step.first + step.num_taken.fetch_add(1, std::memory_order_relaxed)) < step.last;) {
    states_[rank].thresholds = find_thresholds(image_, routings_, rank, peers_.ranks()[rank].num_tokens);
    for (int32_t q = 0; q < image_.header->num_queues; ++q) workers_of(rank)[q].wait_began_ns = now_ns();
    states_[rank].is_ready.store(true, std::memory_order_release);
  }
  return true;
}

// Advances the thread's own workers; if none advances, those of other threads. Returns false if no worker advances.
bool Launch::advance_any(int32_t thread, int32_t num_threads) {
  const auto num_workers = static_cast<int32_t>(workers_.size());
  const auto try_advance = [&](Worker& worker) {
    if (worker.is_held.load(std::memory_order_relaxed) || worker.is_held.exchange(true, std::memory_order_acquire))
      return false;
    const bool has_moved = advance(worker);
    worker.is_held.store(false, std::memory_order_release);
    return has_moved;
  };
  bool has_moved = false;
  for (int32_t i = thread; i < num_workers; i += num_threads) has_moved |= try_advance(workers_[i]);
  for (int32_t i = 0; i < num_workers && !has_moved; ++i) {
    if (i % num_threads != thread) has_moved = try_advance(workers_[i]);
  }
  return has_moved;
}

bool Launch::advance(Worker& worker) {
  const int32_t first = worker.next_task, end = image_.queues[worker.queue + 1];
  if (first == end || !states_[worker.rank].is_ready.load(std::memory_order_acquire)) return false;
  while (worker.next_task < end && !failed_.load(std::memory_order_relaxed) && take_task(worker)) ++worker.next_task;
  if (worker.next_task == end) num_unfinished_.fetch_sub(1, std::memory_order_release);
  return worker.next_task != first;
}

// Runs the worker's next task, unless the task must wait or fails.
bool Launch::take_task(Worker& worker) {
  const Task task = image_.task(worker.next_task);
  const Frame frame = frame_of(worker.rank, task);
  if (find_unmet_wait(worker, frame).event >= 0) return false;
  const int64_t began = record_.trace ? now_ns() : 0;
  const Code code = watch_.is_interrupted() ? Code::INTERRUPTED : run_task(frame);
  if (code != Code::OK) {
    fail(make_status(code, worker.rank, worker.queue, worker.next_task));
    return false;
  }
  const int64_t ended = now_ns();
  if (record_.trace) {
    int64_t* const times = record_.trace + (int64_t{worker.rank} * image_.header->num_tasks + worker.next_task) * 3;
    times[0] = worker.wait_began_ns;
    times[1] = began;
    times[2] = ended;
  }
  worker.wait_began_ns = ended;
  watchdog_.note_progress(ended);
  watch_.keep(ended);
  return true;
}

Frame Launch::frame_of(int32_t rank, const Task& task) const {
  return make_frame(image_, peers_.ranks(), routings_, rank, task);
}

Code Launch::run_task(const Frame& frame) {
  const auto opcode = opcode_of(frame.op);
  const auto add = [&](int32_t target, int64_t event, int64_t amount) { peers_.add(target, event, amount); };
  if (is_transfer(opcode)) {
    for_each_segment(frame, [&](const Segment& segment) {
      if (!is_completion_flag(opcode)) move(frame, segment);
      for_each_segment_signal(frame, segment, add);
    });
  } else {
    const Code code = run_body(frame);
    if (code != Code::OK) return code;
    for_each_row_signal(frame, add);
  }
  for_each_unit_signal(frame, Amount::COUNT, 1, add);
  peers_.send();
  return Code::OK;
}

void Launch::move(const Frame& frame, const Segment& segment) {
  const int32_t target = target_of(frame.op, segment);
  Distant* const distant = peers_.distant(target);
  const bool is_away = peers_.link() && target != frame.rank;  // another process reads the rows, through its own caches
  const int64_t bytes = distant ? send_segment(frame, segment, distant->outbox()) : copy_segment(frame, segment, is_away);
  if (!record_.moved) return;
  int64_t* const moved = record_.moved + int64_t{frame.rank} * peers_.size() + target;
  __atomic_fetch_add(moved, bytes, __ATOMIC_RELAXED);  // other workers of the rank add to it too
}

Status Launch::find_unmet_wait(const Worker& worker, const Frame& frame) const {
  Status status = make_status(Code::TIMEOUT, worker.rank, worker.queue, worker.next_task);
  for (const Wait& wait : image_.waits_of(frame.task)) {
    const int64_t event = event_of(frame, wait);
    status.value = peers_.counted(worker.rank, event);
    status.threshold = states_[worker.rank].thresholds[event];
    if (status.value >= status.threshold) continue;
    status.event = static_cast<int32_t>(event);
    status.wait = static_cast<int32_t>(&wait - image_.waits);
    break;
  }
  return status;
}

// Finds the wait to blame among all waits that workers are in, after the threads have left.
Status Launch::diagnose(const Status& timeout) const {
  std::vector<Stand> stands;
  Status first = timeout;
  for (const Worker& worker : workers_) {
    Status wait = make_status(Code::TIMEOUT, worker.rank, worker.queue, worker.next_task);
    if (states_[worker.rank].is_ready && worker.next_task < image_.queues[worker.queue + 1]) {
      const Task task = image_.task(worker.next_task);
      wait = find_unmet_wait(worker, frame_of(worker.rank, task));
    }
    if (first.event < 0 && wait.event >= 0) first = wait;
    stands.push_back({worker.rank, worker.queue, worker.next_task, wait});
  }
  return find_lost_signal(image_, stands, first);
}

void Launch::fail(const Status& status) {
  if (status.code == static_cast<int32_t>(Code::ABORTED_PEER)) return;  // the rank that failed has reported why
  if (!failed_.exchange(true, std::memory_order_acq_rel)) status_ = status;
}

}  // namespace hpmoe

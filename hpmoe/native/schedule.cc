// List scheduling, and which tasks run where queues are given.
#include <algorithm>
#include <functional>
#include <limits>
#include <queue>

#include "graph.h"
#include "ready.h"
#include "schedule.h"

namespace hpmoe {
namespace {

// A heap of the least element first.
template <class T>
using Heap = std::priority_queue<T, std::vector<T>, std::greater<T>>;

// For each task, minus its cost and the longest chain of costs after it: the least runs first.
std::vector<double> find_urgency(const Graph& graph, const Lists& consumers, int64_t num_tasks, const double* costs) {
  std::vector<double> urgency(num_tasks), of_gate(graph.gate_of.size());
  const std::vector<int32_t> order = find_order(graph, consumers);
  for (auto b = order.rbegin(); b != order.rend(); ++b) {
    double after = 0, least = 0;
    for (int32_t gate : graph.feeds[*b]) after = std::min(after, of_gate[gate]);
    for (int32_t t = graph.starts[*b]; t < graph.starts[*b + 1]; ++t) {
      urgency[t] = after - costs[t];
      least = std::min(least, urgency[t]);
    }
    for (int32_t gate : graph.needs[*b]) of_gate[gate] = std::min(of_gate[gate], least);
  }
  return urgency;
}

// A key for each task: tasks of an op are as urgent as its most urgent one, and which of them comes first is for `order`.
std::vector<double> order_by_op(const HpmoeFlow& flow, const std::vector<double>& urgency, const int64_t* order) {
  std::vector<double> least, keys(flow.num_tasks);
  int64_t span = 1;
  for (int32_t t = 0; t < flow.num_tasks; ++t) {
    const int32_t op = flow.tasks[t].op;
    if (op < 0 || order[t] < 0) throw BadTable();
    if (op >= static_cast<int32_t>(least.size())) least.resize(op + 1);
    least[op] = std::min(least[op], urgency[t]);
    span = std::max(span, order[t] + 1);
  }
  const std::vector<int32_t> ops = sort_stably(least);
  for (size_t i = 0; i < ops.size(); ++i) least[ops[i]] = static_cast<double>(i) * static_cast<double>(span);
  for (int32_t t = 0; t < flow.num_tasks; ++t) keys[t] = least[flow.tasks[t].op] + static_cast<double>(order[t]);
  return keys;
}

// Which task each queue runs and until when: a tree of the first to end of two, and so on; of equal ends the least task.
class Running {
 public:
  explicit Running(int32_t num_queues) {
    while (size_ < num_queues) size_ *= 2;
    end_.assign(size_, kNever);
    task_.assign(size_, kNoTask);
    first_.resize(2 * size_);
    for (int32_t q = 0; q < size_; ++q) first_[size_ + q] = q;
    for (int32_t i = size_ - 1; i > 0; --i) first_[i] = first_[2 * i];
  }

  bool is_idle(int32_t queue) const { return task_[queue] == kNoTask; }
  int32_t task(int32_t queue) const { return task_[queue]; }
  double end(int32_t queue) const { return end_[queue]; }
  int32_t first_to_end() const { return first_[1]; }

  void begin(int32_t queue, int32_t task, double end) {
    set(queue, task, end);
    update(queue);
  }
  // To be followed by begin or update.
  void stop(int32_t queue) { set(queue, kNoTask, kNever); }

  void update(int32_t queue) {
    for (int32_t i = (size_ + queue) / 2; i > 0; i /= 2) {
      const int32_t a = first_[2 * i], b = first_[2 * i + 1];
      const bool is_a = (end_[a] < end_[b]) | ((end_[a] == end_[b]) & (task_[a] < task_[b]));
      first_[i] = is_a ? a : b;
    }
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  static constexpr int32_t kNoTask = INT32_MAX;

  void set(int32_t queue, int32_t task, double end) {
    task_[queue] = task;
    end_[queue] = end;
  }

  int32_t size_ = 2;
  std::vector<double> end_;
  std::vector<int32_t> task_, first_;
};

// Counts down what each bundle still waits for.
class Progress {
 public:
  explicit Progress(const Graph& graph) : graph_(graph), missing_(graph.num_producers), unmet_(graph.num_bundles()) {
    for (int32_t b = 0; b < graph.num_bundles(); ++b) unmet_[b] = graph.needs.size_of(b);
  }

  bool is_ready(int32_t bundle) const { return unmet_[bundle] == 0; }
  bool is_open(int32_t gate) const { return missing_[gate] == 0; }

  // A task has ended; calls opened(gate) for each gate that it was the last producer of.
  template <class Opened>
  void end(int32_t task, Opened opened) {
    for (int32_t gate : graph_.feeds[graph_.bundle_of[task]])
      if (--missing_[gate] == 0) opened(gate);
  }

  template <class Ready>
  void end_and_release(int32_t task, const Lists& consumers, Ready ready) {
    end(task, [&](int32_t gate) {
      for (int32_t b : consumers[gate])
        if (--unmet_[b] == 0) ready(b);
    });
  }

 private:
  const Graph& graph_;
  std::vector<int32_t> missing_, unmet_;
};

// Whether no task waits for one that comes after it or is the same.
bool runs_in_order(const HpmoeFlow& flow) {
  const Gates gates(flow, check_tables(flow));
  std::vector<int32_t> last(flow.num_events, -1);  // producer of each gate
  for (int64_t i = 0; i < flow.num_signals; ++i) {
    int32_t& task = last[gates.of_event[flow.signals[i].event]];
    task = std::max(task, flow.signals[i].task);
  }
  return std::all_of(flow.waits, flow.waits + flow.num_waits,
                     [&](const HpmoeWait& wait) { return last[gates.of_event[wait.event]] < wait.task; });
}

}  // namespace

Schedule schedule(const HpmoeFlow& flow, const double* costs, const int64_t* order, const uint8_t* kind,
                  const int32_t* kind_starts, int32_t num_kinds) {
  const Graph graph(flow);
  const Lists consumers = bundles_of(graph.needs, flow.num_events);
  std::vector<double> keys = find_urgency(graph, consumers, flow.num_tasks, costs);
  if (order) keys = order_by_op(flow, keys, order);
  const std::vector<int32_t> by_urgency = sort_stably(keys);
  std::vector<int32_t> place(flow.num_tasks);
  for (int32_t i = 0; i < flow.num_tasks; ++i) place[by_urgency[i]] = i;
  Progress progress(graph);
  std::vector<LeastFirst> ready(num_kinds, LeastFirst(flow.num_tasks));  // by place
  std::vector<Heap<int32_t>> free(num_kinds);
  Running running(kind_starts[num_kinds]);
  Schedule made{std::vector<std::vector<int32_t>>(kind_starts[num_kinds]), std::vector<int32_t>(flow.num_tasks, -1)};
  int32_t num_begun = 0;
  for (int32_t k = 0; k < num_kinds; ++k)
    for (int32_t q = kind_starts[k]; q < kind_starts[k + 1]; ++q) free[k].push(q);
  const auto make_ready = [&](int32_t bundle) {
    for (int32_t t = graph.starts[bundle]; t < graph.starts[bundle + 1]; ++t) ready[kind[t]].add(place[t]);
  };
  for (int32_t t = 0; t < flow.num_tasks; ++t)
    if (kind[t] >= num_kinds) throw BadTable();
  for (int32_t b = 0; b < graph.num_bundles(); ++b)
    if (progress.is_ready(b)) make_ready(b);
  int32_t done = 0;  // a queue whose task has just ended
  for (double now = 0;;) {
    for (int32_t k = 0; k < num_kinds; ++k) {
      for (; !ready[k].is_empty() && !free[k].empty(); free[k].pop()) {
        const int32_t t = by_urgency[ready[k].take_least()], q = free[k].top();
        made.queues[q].push_back(t);
        made.sequence[t] = num_begun++;
        running.begin(q, t, now + costs[t]);
      }
    }
    if (running.is_idle(done)) running.update(done);
    done = running.first_to_end();
    if (running.is_idle(done)) return made;
    const int32_t t = running.task(done);
    now = running.end(done);
    free[kind[t]].push(done);
    progress.end_and_release(t, consumers, make_ready);
    running.stop(done);
  }
}

void find_runnable(const HpmoeFlow& flow, uint8_t* done) {
  if (flow.num_queues == 0 && runs_in_order(flow)) {
    std::fill(done, done + flow.num_tasks, uint8_t{1});
    return;
  }
  const Graph graph(flow);
  std::fill(done, done + flow.num_tasks, uint8_t{0});
  if (flow.num_queues == 0) {
    for (int32_t b : find_order(graph, bundles_of(graph.needs, flow.num_events)))
      std::fill(done + graph.starts[b], done + graph.starts[b + 1], uint8_t{1});
    return;
  }
  Progress progress(graph);
  std::vector<int32_t> next(flow.queue_starts, flow.queue_starts + flow.num_queues), awake;
  std::vector<std::vector<int32_t>> asleep(flow.num_events);  // queues that stand before a closed gate
  for (int32_t q = 0; q < flow.num_queues; ++q) awake.push_back(q);
  while (!awake.empty()) {
    const int32_t q = awake.back();
    awake.pop_back();
    for (; next[q] < flow.queue_starts[q + 1]; ++next[q]) {
      const int32_t t = flow.queue_tasks[next[q]];
      const Span needs = graph.needs[graph.bundle_of[t]];
      const auto closed = std::find_if(needs.begin(), needs.end(), [&](int32_t g) { return !progress.is_open(g); });
      if (closed != needs.end()) {
        asleep[*closed].push_back(q);
        break;
      }
      done[t] = 1;
      progress.end(t, [&](int32_t gate) {
        awake.insert(awake.end(), asleep[gate].begin(), asleep[gate].end());
        asleep[gate].clear();
      });
    }
  }
}

}  // namespace hpmoe

// List scheduling, and which tasks run where queues are given.
#include <algorithm>
#include <deque>

#include "graph.h"
#include "ready.h"
#include "schedule.h"

namespace hpmoe {
namespace {

// For each task, minus its cost and the longest chain of costs after it: the least runs first.
std::vector<uint64_t> find_urgency(const Graph& graph, const Lists& consumers, int64_t num_tasks, const double* costs) {
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
  std::vector<uint64_t> keys(num_tasks);
  std::transform(urgency.begin(), urgency.end(), keys.begin(), in_order);
  return keys;
}

// The tasks of an op, as far as they are known before they are in order.
struct TasksOfOp {
  int32_t count = 0;
  uint64_t least = 0;     // of `order`
  int64_t last = -1;      // of `order`, of the task seen last
  bool is_sorted = true;
};

std::vector<TasksOfOp> tasks_of_ops(const HpmoeFlow& flow, const int64_t* order) {
  std::vector<TasksOfOp> out;
  for (int32_t t = 0; t < flow.num_tasks; ++t) {
    const int32_t op = flow.tasks[t].op;
    if (op < 0 || order[t] < 0) throw BadTable();
    if (op >= static_cast<int32_t>(out.size())) out.resize(op + 1);
    TasksOfOp& tasks = out[op];
    const auto place = static_cast<uint64_t>(order[t]);
    tasks.least = tasks.count == 0 ? place : std::min(tasks.least, place);
    ++tasks.count;
    tasks.is_sorted &= tasks.last <= order[t];
    tasks.last = order[t];
  }
  return out;
}

std::vector<int32_t> ops_by_least(const std::vector<TasksOfOp>& of_op) {
  std::vector<uint64_t> least(of_op.size());
  std::transform(of_op.begin(), of_op.end(), least.begin(), [](const TasksOfOp& tasks) { return tasks.least; });
  return sort_stably(least);
}

// Sorts tasks by `order`, those of equal numbers in turn.
void sort_by(const int64_t* order, std::vector<int32_t>::iterator begin, std::vector<int32_t>::iterator end) {
  const std::vector<int32_t> mine(begin, end);
  std::vector<uint64_t> keys(mine.size());
  std::transform(mine.begin(), mine.end(), keys.begin(), [&](int32_t t) { return static_cast<uint64_t>(order[t]); });
  const std::vector<int32_t> sorted = sort_stably(keys);
  std::transform(sorted.begin(), sorted.end(), begin, [&](int32_t i) { return mine[i]; });
}

// Tasks by `order`, those of equal numbers in turn. Many ops have theirs sorted already, and few ops' tasks mix: op by op,
// each is merged into those before.
std::vector<int32_t> order_tasks(const HpmoeFlow& flow, const int64_t* order) {
  const std::vector<TasksOfOp> of_op = tasks_of_ops(flow, order);
  const std::vector<int32_t> ops = ops_by_least(of_op);
  std::vector<int32_t> out(flow.num_tasks), next(of_op.size());
  int32_t first = 0;
  for (const int32_t op : ops) {
    next[op] = first;
    first += of_op[op].count;
  }
  for (int32_t t = 0; t < flow.num_tasks; ++t) out[next[flow.tasks[t].op]++] = t;
  const auto is_before = [&](int32_t a, int32_t b) { return order[a] < order[b] || (order[a] == order[b] && a < b); };
  for (const int32_t op : ops) {
    const auto end = out.begin() + next[op], begin = end - of_op[op].count;
    if (!of_op[op].is_sorted) sort_by(order, begin, end);
    if (begin != out.begin() && begin != end && is_before(*begin, *(begin - 1)))
      std::inplace_merge(std::upper_bound(out.begin(), begin, *begin, is_before), begin, end, is_before);
  }
  return out;
}

// What the queues of one kind run, the first to end first; of equal ends the least task. A new one is put in from the end
// that is nearer: most tasks end after all that began before them, or are over at once.
class Running {
 public:
  struct Run {
    double end;
    int32_t task, queue;

    bool operator<(const Run& other) const { return end < other.end || (end == other.end && task < other.task); }
  };

  explicit Running(int32_t num_queues) {
    size_t size = 1;
    while (size <= static_cast<size_t>(num_queues)) size *= 2;
    runs_.resize(size);
    mask_ = size - 1;
  }

  bool is_empty() const { return first_ == last_; }
  const Run& first() const { return runs_[first_ & mask_]; }
  void take_first() { ++first_; }

  void begin(const Run& run) {
    const size_t half = (last_ - first_) / 2;
    if (run < at(first_ + half)) {
      size_t i = --first_;
      for (; i + 1 != last_ && at(i + 1) < run; ++i) at(i) = at(i + 1);
      at(i) = run;
    } else {
      size_t i = last_++;
      for (; i != first_ && run < at(i - 1); --i) at(i) = at(i - 1);
      at(i) = run;
    }
  }

 private:
  Run& at(size_t i) { return runs_[i & mask_]; }

  std::vector<Run> runs_;  // from first_ on, round, to before last_
  size_t first_ = 0, last_ = 0, mask_ = 0;
};

// A task that has ended, and when those that wait for it see that.
struct Ended {
  double seen;
  int32_t task;
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
bool runs_in_order(const Graph& graph) {
  std::vector<int32_t> last(graph.gate_of.size(), -1);  // bundle that feeds each gate
  for (int32_t b = 0; b < graph.num_bundles(); ++b)
    for (const int32_t gate : graph.feeds[b]) last[gate] = b;
  for (int32_t b = 0; b < graph.num_bundles(); ++b)
    for (const int32_t gate : graph.needs[b])
      if (last[gate] >= b) return false;
  return true;
}

}  // namespace

Schedule schedule(const HpmoeFlow& flow, const Graph& graph, const double* costs, double seen_us, const int64_t* order,
                  const uint8_t* kind, const int32_t* kind_starts, int32_t num_kinds) {
  const Lists consumers = bundles_of(graph.needs, flow.num_events);
  const std::vector<int32_t> by_urgency = order ? order_tasks(flow, order)
                                                : sort_stably(find_urgency(graph, consumers, flow.num_tasks, costs));
  std::vector<int32_t> place(flow.num_tasks);
  for (int32_t i = 0; i < flow.num_tasks; ++i) place[by_urgency[i]] = i;
  Progress progress(graph);
  std::vector<LeastFirst> ready(num_kinds, LeastFirst(flow.num_tasks));  // by place
  std::vector<std::deque<int32_t>> free(num_kinds);  // queues of each kind, the one that has waited longest first
  std::vector<Running> running;
  std::deque<Ended> ended;       // those that are not seen yet, in turn
  Schedule made{std::vector<std::vector<int32_t>>(kind_starts[num_kinds]), std::vector<int32_t>(flow.num_tasks, -1)};
  int32_t num_begun = 0;
  for (int32_t k = 0; k < num_kinds; ++k) {
    const int32_t num_queues = kind_starts[k + 1] - kind_starts[k];
    if (num_queues < 0) throw BadTable();
    running.emplace_back(num_queues);
    for (int32_t q = 0; q < num_queues; ++q) free[k].push_back(q);
  }
  const auto make_ready = [&](int32_t bundle) {
    for (int32_t t = graph.starts[bundle]; t < graph.starts[bundle + 1]; ++t) ready[kind[t]].add(place[t]);
  };
  for (int32_t t = 0; t < flow.num_tasks; ++t)
    if (kind[t] >= num_kinds) throw BadTable();
  for (int32_t b = 0; b < graph.num_bundles(); ++b)
    if (progress.is_ready(b)) make_ready(b);
  for (double now = 0;;) {
    for (; !ended.empty() && ended.front().seen <= now; ended.pop_front())
      progress.end_and_release(ended.front().task, consumers, make_ready);
    int32_t next = -1;  // the kind whose task ends first
    for (int32_t k = 0; k < num_kinds; ++k) {
      while (!ready[k].is_empty() && !free[k].empty()) {
        const int32_t t = by_urgency[ready[k].take_least()], q = free[k].front();
        free[k].pop_front();
        made.queues[kind_starts[k] + q].push_back(t);
        made.sequence[t] = num_begun++;
        running[k].begin({now + costs[t], t, q});
      }
      if (!running[k].is_empty() && (next < 0 || running[k].first() < running[next].first())) next = k;
    }
    if (!ended.empty() && (next < 0 || ended.front().seen < running[next].first().end)) {
      now = ended.front().seen;
      continue;
    }
    if (next < 0) return made;
    const Running::Run done = running[next].first();
    running[next].take_first();
    now = done.end;
    free[next].push_back(done.queue);
    ended.push_back({now + seen_us, done.task});
  }
}

void find_runnable(const HpmoeFlow& flow, const Graph& graph, uint8_t* done) {
  check_queues(flow);
  if (flow.num_queues == 0 && runs_in_order(graph)) {
    std::fill(done, done + flow.num_tasks, uint8_t{1});
    return;
  }
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

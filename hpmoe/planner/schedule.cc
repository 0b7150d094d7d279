// List scheduling, and which tasks run where queues are given.
#include <algorithm>
#include <deque>
#include <queue>

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

// Tasks from the least `order` to the greatest.
std::vector<int32_t> order_tasks(const int64_t* order, int64_t num_tasks) {
  if (std::any_of(order, order + num_tasks, [](int64_t place) { return place < 0; })) throw BadTable();
  return sort_stably({order, order + num_tasks});
}

// A task that a queue runs; the first to end is the greatest, of equal ends the least task.
struct Run {
  double end;
  int32_t task, queue;

  bool operator<(const Run& other) const { return end > other.end || (end == other.end && task > other.task); }
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
  const std::vector<int32_t> by_urgency = order ? order_tasks(order, flow.num_tasks)
                                                : sort_stably(find_urgency(graph, consumers, flow.num_tasks, costs));
  std::vector<int32_t> place(flow.num_tasks);
  for (int32_t i = 0; i < flow.num_tasks; ++i) place[by_urgency[i]] = i;
  Progress progress(graph);
  std::vector<LeastFirst> ready(num_kinds, LeastFirst(flow.num_tasks));  // by place
  std::vector<std::deque<int32_t>> free(num_kinds);  // queues of each kind, the one that has waited longest first
  std::priority_queue<Run> running;
  std::deque<Ended> ended;  // those that are not seen yet, in turn
  Schedule made{std::vector<std::vector<int32_t>>(kind_starts[num_kinds]), std::vector<int32_t>(flow.num_tasks, -1)};
  int32_t num_begun = 0;
  for (int32_t k = 0; k < num_kinds; ++k) {
    if (kind_starts[k + 1] < kind_starts[k]) throw BadTable();
    for (int32_t q = kind_starts[k]; q < kind_starts[k + 1]; ++q) free[k].push_back(q);
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
    for (int32_t k = 0; k < num_kinds; ++k) {
      while (!ready[k].is_empty() && !free[k].empty()) {
        const int32_t t = by_urgency[ready[k].take_least()], q = free[k].front();
        free[k].pop_front();
        made.queues[q].push_back(t);
        made.sequence[t] = num_begun++;
        running.push({now + costs[t], t, q});
      }
    }
    if (!ended.empty() && (running.empty() || ended.front().seen < running.top().end)) {
      now = ended.front().seen;
      continue;
    }
    if (running.empty()) return made;
    const Run done = running.top();
    running.pop();
    now = done.end;
    free[kind[done.task]].push_back(done.queue);
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

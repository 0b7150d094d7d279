// List scheduling, and which tasks run where queues are given.
#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "graph.h"
#include "schedule.h"

namespace hpmoe {
namespace {

// A heap of the least element first.
template <class T>
using Heap = std::priority_queue<T, std::vector<T>, std::greater<T>>;

// For each task, minus its cost and the longest chain of costs after it: the least runs first.
std::vector<double> find_urgency(const Graph& graph, int64_t num_tasks, const double* costs) {
  std::vector<double> urgency(num_tasks), of_gate(graph.gate_of.size());
  const std::vector<int32_t> order = find_order(graph, num_tasks);
  for (auto t = order.rbegin(); t != order.rend(); ++t) {
    double after = 0;
    for (int32_t gate : graph.feeds[*t]) after = std::min(after, of_gate[gate]);
    urgency[*t] = after - costs[*t];
    for (int32_t gate : graph.needs[*t]) of_gate[gate] = std::min(of_gate[gate], urgency[*t]);
  }
  return urgency;
}

struct Running {
  double end;
  int32_t task, queue;

  bool operator>(const Running& other) const { return end != other.end ? end > other.end : task > other.task; }
};

// Counts down what each task still waits for.
class Progress {
 public:
  Progress(const Graph& graph, int64_t num_tasks) : graph_(graph), missing_(graph.gate_of.size()), unmet_(num_tasks) {
    for (size_t g = 0; g < missing_.size(); ++g) missing_[g] = graph.producers.size_of(static_cast<int32_t>(g));
    for (int32_t t = 0; t < num_tasks; ++t) unmet_[t] = graph.needs.size_of(t);
  }

  bool is_ready(int32_t task) const { return unmet_[task] == 0; }
  bool is_open(int32_t gate) const { return missing_[gate] == 0; }

  // A task has ended; calls opened(gate) for each gate that it was the last producer of.
  template <class Opened>
  void end(int32_t task, Opened opened) {
    for (int32_t gate : graph_.feeds[task])
      if (--missing_[gate] == 0) opened(gate);
  }

  template <class Ready>
  void end_and_release(int32_t task, Ready ready) {
    end(task, [&](int32_t gate) {
      for (int32_t t : graph_.consumers[gate])
        if (--unmet_[t] == 0) ready(t);
    });
  }

 private:
  const Graph& graph_;
  std::vector<int32_t> missing_, unmet_;
};

}  // namespace

std::vector<std::vector<int32_t>> schedule(const HpmoeFlow& flow, const double* costs, const uint8_t* kind,
                                           const int32_t* kind_starts, int32_t num_kinds) {
  const Graph graph(flow);
  const std::vector<double> urgency = find_urgency(graph, flow.num_tasks, costs);
  Progress progress(graph, flow.num_tasks);
  std::vector<Heap<std::pair<double, int32_t>>> ready(num_kinds);
  std::vector<Heap<int32_t>> free(num_kinds);
  Heap<Running> running;
  std::vector<std::vector<int32_t>> queues(kind_starts[num_kinds]);
  for (int32_t k = 0; k < num_kinds; ++k)
    for (int32_t q = kind_starts[k]; q < kind_starts[k + 1]; ++q) free[k].push(q);
  const auto make_ready = [&](int32_t t) { ready[kind[t]].push({urgency[t], t}); };
  for (int32_t t = 0; t < flow.num_tasks; ++t) {
    if (kind[t] >= num_kinds) throw BadTable();
    if (progress.is_ready(t)) make_ready(t);
  }
  for (double now = 0;;) {
    for (int32_t k = 0; k < num_kinds; ++k) {
      for (; !ready[k].empty() && !free[k].empty(); ready[k].pop(), free[k].pop()) {
        const int32_t t = ready[k].top().second, q = free[k].top();
        queues[q].push_back(t);
        running.push({now + costs[t], t, q});
      }
    }
    if (running.empty()) return queues;
    const Running done = running.top();
    running.pop();
    now = done.end;
    free[kind[done.task]].push(done.queue);
    progress.end_and_release(done.task, make_ready);
  }
}

void find_runnable(const HpmoeFlow& flow, uint8_t* done) {
  const Graph graph(flow);
  std::fill(done, done + flow.num_tasks, uint8_t{0});
  if (flow.num_queues == 0) {
    for (int32_t t : find_order(graph, flow.num_tasks)) done[t] = 1;
    return;
  }
  Progress progress(graph, flow.num_tasks);
  std::vector<int32_t> next(flow.queue_starts, flow.queue_starts + flow.num_queues), awake;
  std::vector<std::vector<int32_t>> asleep(flow.num_events);  // queues that stand before a closed gate
  for (int32_t q = 0; q < flow.num_queues; ++q) awake.push_back(q);
  while (!awake.empty()) {
    const int32_t q = awake.back();
    awake.pop_back();
    for (; next[q] < flow.queue_starts[q + 1]; ++next[q]) {
      const int32_t t = flow.queue_tasks[next[q]];
      const Span needs = graph.needs[t];
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

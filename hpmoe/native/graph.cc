#include "graph.h"

#include <unordered_map>
#include <utility>

namespace hpmoe {
namespace {

void check_index(int64_t index, int64_t size) {
  if (index < 0 || index >= size) throw BadTable();
}

void check_tables(const HpmoeFlow& flow) {
  for (int64_t i = 0; i < flow.num_waits; ++i) {
    check_index(flow.waits[i].task, flow.num_tasks);
    check_index(flow.waits[i].event, flow.num_events);
  }
  for (int64_t i = 0; i < flow.num_signals; ++i) {
    check_index(flow.signals[i].task, flow.num_tasks);
    check_index(flow.signals[i].event, flow.num_events);
  }
  if (flow.num_queues == 0) return;
  check_index(flow.queue_starts[flow.num_queues], flow.num_tasks + 1);
  for (int64_t i = 0; i < flow.queue_starts[flow.num_queues]; ++i) check_index(flow.queue_tasks[i], flow.num_tasks);
}

}  // namespace

Gates::Gates(const HpmoeFlow& flow) : of_event(flow.num_events), is_block(flow.num_events) {
  check_tables(flow);
  std::unordered_map<int32_t, int32_t> gate_of_block;  // of blocks whose index is found at run time
  int32_t last = -1;
  const auto note = [&](int32_t kind, int32_t event) {
    if (kind == 0 || event == last) return;
    gate_of_block[flow.events[event].block] = -1;
    last = event;
  };
  for (int64_t i = 0; i < flow.num_waits; ++i) note(flow.waits[i].kind, flow.waits[i].event);
  for (int64_t i = 0; i < flow.num_signals; ++i) note(flow.signals[i].kind, flow.signals[i].event);
  for (int32_t e = 0; e < flow.num_events; ++e) {
    of_event[e] = e;
    if (gate_of_block.empty()) continue;
    if (e > 0 && flow.events[e].block == flow.events[e - 1].block) {
      is_block[e] = is_block[e - 1];
      if (is_block[e]) of_event[e] = of_event[e - 1];
      continue;
    }
    const auto block = gate_of_block.find(flow.events[e].block);
    if (block == gate_of_block.end()) continue;
    if (block->second < 0) block->second = e;
    of_event[e] = block->second;
    is_block[e] = 1;
  }
}

Graph::Graph(const HpmoeFlow& flow) : num_producers(flow.num_events) {
  Gates gates(flow);
  gate_of = std::move(gates.of_event);
  is_block = std::move(gates.is_block);
  feeds = group(flow.num_tasks, flow.num_signals, [&](int64_t i, auto add) {
    add(flow.signals[i].task, gate_of[flow.signals[i].event]);
  });
  for (const int32_t gate : feeds.items) ++num_producers[gate];
  needs = group(flow.num_tasks, flow.num_waits, [&](int64_t i, auto add) {
    const int32_t gate = gate_of[flow.waits[i].event];
    if (num_producers[gate] > 0) add(flow.waits[i].task, gate);
  });
}

namespace {

// The lists of gates by task turned around.
Lists turned(const Lists& gates_of, int64_t num_gates) {
  Lists tasks_of;
  tasks_of.starts.assign(num_gates + 1, 0);
  for (const int32_t gate : gates_of.items) ++tasks_of.starts[gate + 1];
  for (int64_t g = 0; g < num_gates; ++g) tasks_of.starts[g + 1] += tasks_of.starts[g];
  tasks_of.items.resize(gates_of.items.size());
  std::vector<int32_t> next(tasks_of.starts.begin(), tasks_of.starts.end() - 1);
  const auto num_tasks = static_cast<int32_t>(gates_of.starts.size() - 1);
  for (int32_t t = 0; t < num_tasks; ++t)
    for (const int32_t gate : gates_of[t]) tasks_of.items[next[gate]++] = t;
  return tasks_of;
}

}  // namespace

Users::Users(const HpmoeFlow& flow, const Graph& graph)
    : producers(turned(graph.feeds, flow.num_events)), consumers(turned(graph.needs, flow.num_events)) {}

std::vector<int32_t> find_order(const Graph& graph, const Users& users, int64_t num_tasks) {
  std::vector<int32_t> order, unmet(num_tasks), missing(graph.num_producers);
  order.reserve(num_tasks);
  for (int32_t t = 0; t < num_tasks; ++t) {
    unmet[t] = graph.needs.size_of(t);
    if (unmet[t] == 0) order.push_back(t);
  }
  for (size_t next = 0; next < order.size(); ++next) {
    for (int32_t gate : graph.feeds[order[next]]) {
      if (--missing[gate] > 0) continue;
      for (int32_t t : users.consumers[gate])
        if (--unmet[t] == 0) order.push_back(t);
    }
  }
  return order;
}

}  // namespace hpmoe

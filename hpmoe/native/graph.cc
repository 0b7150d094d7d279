#include "graph.h"

#include <unordered_map>

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

Graph::Graph(const HpmoeFlow& flow) : gate_of(flow.num_events), is_block(flow.num_events) {
  check_tables(flow);
  std::unordered_map<int32_t, int32_t> gate_of_block;  // of blocks whose index is found at run time
  for (int64_t i = 0; i < flow.num_waits; ++i)
    if (flow.waits[i].kind != 0) gate_of_block[flow.events[flow.waits[i].event].block] = -1;
  for (int64_t i = 0; i < flow.num_signals; ++i)
    if (flow.signals[i].kind != 0) gate_of_block[flow.events[flow.signals[i].event].block] = -1;
  for (int32_t e = 0; e < flow.num_events; ++e) {
    gate_of[e] = e;
    if (gate_of_block.empty()) continue;
    const auto block = gate_of_block.find(flow.events[e].block);
    if (block == gate_of_block.end()) continue;
    if (block->second < 0) block->second = e;
    gate_of[e] = block->second;
    is_block[e] = 1;
  }
  std::vector<uint8_t> is_signalled(flow.num_events);
  for (int64_t i = 0; i < flow.num_signals; ++i) is_signalled[gate_of[flow.signals[i].event]] = 1;
  const auto signal_gate = [&](int64_t i) { return gate_of[flow.signals[i].event]; };
  const auto wait_gate = [&](int64_t i) { return gate_of[flow.waits[i].event]; };
  feeds = group(flow.num_tasks, flow.num_signals,
                [&](int64_t i, auto add) { add(flow.signals[i].task, signal_gate(i)); });
  producers = group(flow.num_events, flow.num_signals,
                    [&](int64_t i, auto add) { add(signal_gate(i), flow.signals[i].task); });
  needs = group(flow.num_tasks, flow.num_waits, [&](int64_t i, auto add) {
    if (is_signalled[wait_gate(i)]) add(flow.waits[i].task, wait_gate(i));
  });
  consumers = group(flow.num_events, flow.num_waits, [&](int64_t i, auto add) {
    if (is_signalled[wait_gate(i)]) add(wait_gate(i), flow.waits[i].task);
  });
}

std::vector<int32_t> find_order(const Graph& graph, int64_t num_tasks) {
  std::vector<int32_t> order, unmet(num_tasks), missing(graph.gate_of.size());
  order.reserve(num_tasks);
  for (size_t g = 0; g < missing.size(); ++g) missing[g] = graph.producers.size_of(static_cast<int32_t>(g));
  for (int32_t t = 0; t < num_tasks; ++t) {
    unmet[t] = graph.needs.size_of(t);
    if (unmet[t] == 0) order.push_back(t);
  }
  for (size_t next = 0; next < order.size(); ++next) {
    for (int32_t gate : graph.feeds[order[next]]) {
      if (--missing[gate] > 0) continue;
      for (int32_t t : graph.consumers[gate])
        if (--unmet[t] == 0) order.push_back(t);
    }
  }
  return order;
}

}  // namespace hpmoe

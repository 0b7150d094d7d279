#include "graph.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace hpmoe {
namespace {

void check_index(int64_t index, int64_t size) {
  if (index < 0 || index >= size) throw BadTable();
}

template <class Row>
RowFacts check_rows(const Row* rows, int64_t num_rows, const HpmoeFlow& flow) {
  uint32_t is_bad = 0, is_unsorted = 0, kinds = 0;
  int32_t last = 0;
  for (int64_t i = 0; i < num_rows; ++i) {  // without branches
    is_bad |= static_cast<uint32_t>(rows[i].task) >= flow.num_tasks;
    is_bad |= static_cast<uint32_t>(rows[i].event) >= flow.num_events;
    is_unsorted |= rows[i].task < last;
    kinds |= rows[i].kind;
    last = rows[i].task;
  }
  if (is_bad) throw BadTable();
  return {!is_unsorted, kinds != 0};
}

// `rows` sorted by task, in `storage` where they are not.
template <class Row>
const Row* sorted(const Row* rows, int64_t num_rows, RowFacts facts, std::vector<Row>& storage) {
  if (facts.is_sorted) return rows;
  storage.assign(rows, rows + num_rows);
  std::stable_sort(storage.begin(), storage.end(), [](const Row& a, const Row& b) { return a.task < b.task; });
  return storage.data();
}

// Whether two stretches of rows, each of one task, are about the same events in the same way.
template <class Row>
bool are_alike(const Row* a, const Row* a_end, const Row* b, const Row* b_end) {
  return std::equal(a, a_end, b, b_end, [](const Row& x, const Row& y) { return x.event == y.event && x.kind == y.kind; });
}

}  // namespace

void check_queues(const HpmoeFlow& flow) {
  if (flow.num_queues == 0) return;
  check_index(flow.queue_starts[flow.num_queues], flow.num_tasks + 1);
  for (int64_t i = 0; i < flow.queue_starts[flow.num_queues]; ++i) check_index(flow.queue_tasks[i], flow.num_tasks);
}

Gates::Gates(const HpmoeFlow& flow, const TableFacts& facts) : of_event(flow.num_events), is_block(flow.num_events) {
  std::unordered_map<int32_t, int32_t> gate_of_block;  // of blocks whose index is found at run time
  int32_t last = -1;
  const auto note = [&](int32_t kind, int32_t event) {
    if (kind == 0 || event == last) return;
    gate_of_block[flow.events[event].block] = -1;
    last = event;
  };
  for (int64_t i = 0; facts.waits.has_kinds && i < flow.num_waits; ++i) note(flow.waits[i].kind, flow.waits[i].event);
  for (int64_t i = 0; facts.signals.has_kinds && i < flow.num_signals; ++i)
    note(flow.signals[i].kind, flow.signals[i].event);
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

Tables::Tables(const HpmoeFlow& flow)
    : facts{check_rows(flow.waits, flow.num_waits, flow), check_rows(flow.signals, flow.num_signals, flow)},
      first_wait(flow.num_tasks + 1) {
  waits = sorted(flow.waits, flow.num_waits, facts.waits, sorted_waits);
  signals = sorted(flow.signals, flow.num_signals, facts.signals, sorted_signals);
  for (int64_t i = 0; i < flow.num_waits; ++i) ++first_wait[waits[i].task + 1];
  for (int64_t t = 0; t < flow.num_tasks; ++t) first_wait[t + 1] += first_wait[t];
}

Graph::Graph(const HpmoeFlow& flow) : tables(flow), num_producers(flow.num_events) {
  Gates gates(flow, tables.facts);
  gate_of = std::move(gates.of_event);
  is_block = std::move(gates.is_block);
  for (int64_t i = 0; i < flow.num_signals; ++i) ++num_producers[gate_of[tables.signals[i].event]];
  bundle_of.resize(flow.num_tasks);
  feeds.starts = needs.starts = {0};
  const HpmoeSignal *signal = tables.signals, *const end = signal + flow.num_signals, *last_signal = signal;
  for (int32_t t = 0; t < flow.num_tasks; ++t) {
    const HpmoeWait* const wait = tables.waits + tables.first_wait[t];
    const HpmoeWait* const wait_end = tables.waits + tables.first_wait[t + 1];
    const HpmoeSignal* const first = signal;
    while (signal != end && signal->task == t) ++signal;
    const bool is_alike = t > 0 && are_alike(first, signal, last_signal, first) &&
                          are_alike(wait, wait_end, tables.waits + tables.first_wait[t - 1], wait);
    last_signal = first;
    if (!is_alike) {
      starts.push_back(t);
      for (const HpmoeSignal* s = first; s != signal; ++s) feeds.items.push_back(gate_of[s->event]);
      for (const HpmoeWait* w = wait; w != wait_end; ++w)
        if (num_producers[gate_of[w->event]] > 0) needs.items.push_back(gate_of[w->event]);
      feeds.starts.push_back(static_cast<int32_t>(feeds.items.size()));
      needs.starts.push_back(static_cast<int32_t>(needs.items.size()));
    }
    bundle_of[t] = static_cast<int32_t>(starts.size() - 1);
  }
  starts.push_back(static_cast<int32_t>(flow.num_tasks));
}

Lists bundles_of(const Lists& gates, int64_t num_gates) {
  Lists bundles;
  bundles.starts.assign(num_gates + 1, 0);
  for (const int32_t gate : gates.items) ++bundles.starts[gate + 1];
  for (int64_t g = 0; g < num_gates; ++g) bundles.starts[g + 1] += bundles.starts[g];
  bundles.items.resize(gates.items.size());
  std::vector<int32_t> next(bundles.starts.begin(), bundles.starts.end() - 1);
  const auto num_bundles = static_cast<int32_t>(gates.starts.size() - 1);
  for (int32_t b = 0; b < num_bundles; ++b)
    for (const int32_t gate : gates[b]) bundles.items[next[gate]++] = b;
  return bundles;
}

std::vector<int32_t> find_order(const Graph& graph, const Lists& consumers) {
  const int32_t num_bundles = graph.num_bundles();
  std::vector<int32_t> order, unmet(num_bundles), missing(graph.num_producers);
  order.reserve(num_bundles);
  for (int32_t b = 0; b < num_bundles; ++b) {
    unmet[b] = graph.needs.size_of(b);
    if (unmet[b] == 0) order.push_back(b);
  }
  for (size_t next = 0; next < order.size(); ++next) {
    const int32_t size = graph.size_of(order[next]);
    for (int32_t gate : graph.feeds[order[next]]) {
      missing[gate] -= size;
      if (missing[gate] > 0) continue;
      for (int32_t b : consumers[gate])
        if (--unmet[b] == 0) order.push_back(b);
    }
  }
  return order;
}

}  // namespace hpmoe

// A program for the sanitizers: random taskflows scheduled, pruned and run, and tables that point nowhere.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "checks.h"
#include "planner.h"

namespace {

using hpmoe::check;

// Layers of tasks: each waits for up to two events of the layer before and signals its own; some blocks are dynamic.
struct RandomFlow {
  std::vector<HpmoeTask> tasks;
  std::vector<HpmoeWait> waits;
  std::vector<HpmoeSignal> signals;
  std::vector<HpmoeEvent> events;
  std::vector<int32_t> starts, order;

  RandomFlow(std::mt19937& random, int num_layers, int width) {
    for (int layer = 0; layer < num_layers; ++layer) {
      const auto kind = static_cast<int16_t>(random() % 4 == 0);
      for (int i = 0; i < width; ++i) {
        const int32_t t = layer * width + i;
        tasks.push_back({layer, -1, i, 0, 0});
        events.push_back({1, i, 1, 0, layer});
        signals.push_back({t, t, kind, 0, static_cast<int32_t>(random() % 8 == 0)});
        for (unsigned n = random() % 3; layer > 0 && n > 0; --n) {
          waits.push_back({t, (layer - 1) * width + static_cast<int32_t>(random() % width), 0});
        }
      }
    }
  }

  HpmoeFlow view() const {
    return {tasks.data(),
            waits.data(),
            signals.data(),
            events.data(),
            starts.data(),
            order.data(),
            int64_t(tasks.size()),
            int64_t(waits.size()),
            int64_t(signals.size()),
            int64_t(events.size()),
            starts.empty() ? 0 : int64_t(starts.size()) - 1};
  }
};

// The graph of a flow, freed with it.
class Graph {
 public:
  explicit Graph(const HpmoeFlow& flow) : result(hpmoe_make_graph(&flow, &graph_)) {}
  ~Graph() { hpmoe_free_graph(graph_); }
  Graph(const Graph&) = delete;
  operator const HpmoeGraph*() const { return graph_; }

 private:
  HpmoeGraph* graph_ = nullptr;

 public:
  const int result;
};

// Queues rebuilt from the start order of tasks: tasks of kind 0 stay in their queues, others are dealt out in turn.
void test_deal(HpmoeFlow flow, const std::vector<int32_t>& sequence, const std::vector<uint8_t>& kind) {
  const auto n = static_cast<int32_t>(sequence.size());
  std::vector<int32_t> starts(6), order(n), queue(n);
  std::vector<HpmoeDealt> dealt(n, {2, 3});
  std::vector<uint8_t> unit(n, 3), units(5, 1);
  uint8_t are_queues = 0;
  for (int32_t t = 0; t < n; ++t) queue[t] = kind[t] == 0 ? t % 2 : -1;
  check(hpmoe_deal(&flow, sequence.data(), dealt.data(), n, queue.data(), 5, starts.data(), order.data()) == HPMOE_OK,
        "tasks are dealt out");
  for (int32_t t = 0; t < n; ++t) check(kind[t] == 0 ? queue[t] == t % 2 : queue[t] >= 2 && queue[t] < 5, "in their queues");
  flow.queue_starts = starts.data();
  flow.queue_tasks = order.data();
  flow.num_queues = 5;
  check(hpmoe_are_queues(&flow, unit.data(), n, units.data(), &are_queues) == HPMOE_OK && are_queues, "each task once");
  order[0] = order[n - 1];
  check(hpmoe_are_queues(&flow, unit.data(), n, units.data(), &are_queues) == HPMOE_OK && are_queues == (n == 1),
        "not twice");
  queue[0] = 5;
  check(hpmoe_deal(&flow, sequence.data(), dealt.data(), n, queue.data(), 5, starts.data(), order.data()) == HPMOE_BAD_TABLE,
        "a queue that does not exist is refused");
}

void test_random_flow(std::mt19937& random) {
  RandomFlow flow(random, 1 + random() % 6, 1 + random() % 9);
  const size_t n = flow.tasks.size();
  std::vector<double> costs(n);
  std::vector<uint8_t> kind(n), done(n), needed(flow.waits.size() + 1), is_unit(flow.events.size(), 1);
  for (size_t t = 0; t < n; ++t) {
    costs[t] = 1 + random() % 5;
    kind[t] = random() % 2;
  }
  const int32_t kind_starts[] = {0, 2, 5};
  std::vector<int32_t> starts(6), order(n), sequence(n);
  std::vector<int64_t> place(n);
  for (size_t t = 0; t < n; ++t) place[t] = random() % (n + 1);
  const HpmoeFlow tiles = flow.view();
  const Graph graph(tiles);
  check(graph.result == HPMOE_OK &&
            hpmoe_schedule(&tiles, graph, costs.data(), n % 3, n % 2 ? place.data() : nullptr, kind.data(), kind_starts, 2,
                           starts.data(), order.data(), sequence.data()) == HPMOE_OK &&
            starts[5] == int32_t(n),
        "every task is scheduled");
  test_deal(tiles, sequence, kind);
  flow.starts = starts;
  flow.order = order;
  const HpmoeFlow queued = flow.view();
  check(hpmoe_prune_waits(&queued, graph, is_unit.data(), needed.data()) == HPMOE_OK, "waits are pruned");
  std::vector<int32_t> number(flow.events.size());
  for (size_t e = 0; e < number.size(); ++e) number[e] = int32_t(e);
  std::vector<HpmoeWait> left(flow.waits.size() + 1);
  std::vector<HpmoeSignal> added(flow.signals.size());
  int64_t num_left = 0, num_added = 0;
  check(hpmoe_renumber_waits(flow.waits.data(), int64_t(flow.waits.size()), needed.data(), number.data(),
                             int64_t(number.size()), left.data(), &num_left) == HPMOE_OK &&
            hpmoe_renumber_signals(flow.signals.data(), int64_t(added.size()), number.data(), int64_t(number.size()),
                                   added.data(), &num_added) == HPMOE_OK &&
            num_added == int64_t(added.size()),
        "tables are numbered anew");
  check(hpmoe_renumber_signals(flow.signals.data(), int64_t(added.size()), number.data(), 0, added.data(), &num_added) ==
            HPMOE_BAD_TABLE,
        "every event has a number");
  left.resize(num_left);
  flow.waits.swap(left);
  const HpmoeFlow pruned = flow.view();
  check(hpmoe_find_runnable(&pruned, Graph(pruned), done.data()) == HPMOE_OK, "a schedule is run");
  for (uint8_t each : done) check(each, "every task runs");
}

void test_rules(std::mt19937& random) {
  const HpmoeGrid grids[] = {{0, 3, 2, 2, 1}, {-1, 1, 0, 1, 1}, {0, 4, 0, 5, 2}};
  std::vector<HpmoeRule> rules;
  for (int32_t op = 0; op < 3; ++op)
    for (unsigned n = random() % 4; n > 0; --n) {
      const auto col = static_cast<int32_t>(random() % grids[op].num_cols);
      rules.push_back({op, col, grids[op].num_cols, static_cast<int32_t>(random() % 2) - 1, 3, 2, 1, 1, 1, 0, 0, 0});
    }
  std::vector<HpmoeWait> waits(33 * rules.size() + 1);
  std::vector<HpmoeSignal> signals(waits.size());
  int64_t num_waits = 0, num_signals = 0;
  const auto row_capacity = static_cast<int64_t>(waits.size()), count = static_cast<int64_t>(rules.size());
  check(hpmoe_expand_waits(grids, 3, rules.data(), count, waits.data(), row_capacity, &num_waits) == HPMOE_OK &&
            hpmoe_expand_signals(grids, 3, rules.data(), count, signals.data(), row_capacity, &num_signals) == HPMOE_OK &&
            num_waits <= num_signals && num_signals <= row_capacity,
        "rules are expanded");
  check(num_signals == 0 || hpmoe_expand_signals(grids, 3, rules.data(), count, signals.data(), num_signals - 1,
                                                 &num_signals) == HPMOE_BAD_TABLE,
        "there must be room");
}

void test_bad_tables(std::mt19937& random) {
  RandomFlow flow(random, 4, 4);
  flow.signals[random() % flow.signals.size()].task = random() % 2 ? -1 : 1000;
  const HpmoeFlow bad = flow.view();
  check(Graph(bad).result == HPMOE_BAD_TABLE, "a table that points nowhere is refused");
}

}  // namespace

int main(int argc, char** argv) {
  std::mt19937 random(5);
  for (int i = 0; i < int(200 * (argc > 1 ? std::atof(argv[1]) : 1)); ++i) {
    test_random_flow(random);
    test_rules(random);
    test_bad_tables(random);
  }
  std::puts("planner driver: ok");
}

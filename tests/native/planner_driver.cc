// A program for the sanitizers: random taskflows scheduled, pruned and run, and tables that point nowhere.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "planner.h"

namespace {

void check(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

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
    return {tasks.data(), waits.data(), signals.data(), events.data(), starts.data(), order.data(),
            int64_t(tasks.size()), int64_t(waits.size()), int64_t(signals.size()), int64_t(events.size()),
            starts.empty() ? 0 : int64_t(starts.size()) - 1};
  }
};

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
  std::vector<int32_t> starts(6), order(n);
  const HpmoeFlow tiles = flow.view();
  check(hpmoe_schedule(&tiles, costs.data(), kind.data(), kind_starts, 2, starts.data(),
                       order.data()) == HPMOE_OK && starts[5] == int32_t(n), "every task is scheduled");
  flow.starts = starts;
  flow.order = order;
  const HpmoeFlow queued = flow.view();
  check(hpmoe_prune_waits(&queued, is_unit.data(), needed.data()) == HPMOE_OK, "waits are pruned");
  std::vector<HpmoeWait> left;
  for (size_t w = 0; w < flow.waits.size(); ++w)
    if (needed[w]) left.push_back(flow.waits[w]);
  flow.waits = left;
  const HpmoeFlow pruned = flow.view();
  check(hpmoe_find_runnable(&pruned, done.data()) == HPMOE_OK, "a schedule is run");
  for (uint8_t each : done) check(each, "every task runs");
}

void test_bad_tables(std::mt19937& random) {
  RandomFlow flow(random, 4, 4);
  std::vector<uint8_t> done(flow.tasks.size());
  flow.signals[random() % flow.signals.size()].task = random() % 2 ? -1 : 1000;
  const HpmoeFlow bad = flow.view();
  check(hpmoe_find_runnable(&bad, done.data()) == HPMOE_BAD_TABLE, "a table that points nowhere is refused");
}

}  // namespace

int main(int argc, char** argv) {
  std::mt19937 random(5);
  for (int i = 0; i < 200 * (argc > 1 ? std::atoi(argv[1]) : 1); ++i) {
    test_random_flow(random);
    test_bad_tables(random);
  }
  std::puts("planner driver: ok");
}

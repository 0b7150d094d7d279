// Which waits of tasks in queues are needed.
//
// Dropped is a wait (1) whose producers all run earlier in the same queue, (2) that an earlier task of the queue makes
// already, or (3) that the producers of another wait of the task make for the same unit. Waits are never skipped, so 1 and
// 2 always hold; 3 is limited to one unit because a unit that turns out empty is not waited for at all.
#include <algorithm>
#include <numeric>

#include "graph.h"
#include "schedule.h"

namespace hpmoe {
namespace {

struct Place {
  int32_t queue = -1, position = -1;
};

class Pruner {
 public:
  Pruner(const HpmoeFlow& flow, const Graph& graph, const uint8_t* is_unit)
      : flow_(flow),
        graph_(graph),
        producers_(bundles_of(graph_.feeds, flow.num_events)),
        places_(flow.num_tasks),
        is_remote_(flow.num_events),
        last_(flow.num_events),
        is_unit_(is_unit),
        before_(flow.num_events),
        is_known_(flow.num_events),
        made_in_(flow.num_events, -1) {
    for (int32_t q = 0; q < flow.num_queues; ++q)
      for (int32_t i = flow.queue_starts[q]; i < flow.queue_starts[q + 1]; ++i) places_[flow.queue_tasks[i]] = {q, i};
    for (int64_t i = 0; i < flow.num_signals; ++i)
      if (flow.signals[i].remote != 0) is_remote_[graph_.gate_of[flow.signals[i].event]] = 1;
    for (int32_t g = 0; g < flow.num_events; ++g) last_[g] = last_in_one_queue(g);
  }

  // needed[w] of the waits as they are sorted by task.
  void prune(uint8_t* needed) {
    for (int64_t i = 0; i < flow_.num_waits; ++i) {
      const HpmoeWait& wait = graph_.tables.waits[i];
      const Place last = last_[graph_.gate_of[wait.event]], here = places_[wait.task];
      needed[i] = last.queue < 0 || last.queue != here.queue || last.position >= here.position;
    }
    Range last{nullptr, nullptr};  // what a bundle waits for, often as the one before it
    std::vector<int32_t> implied;
    for (int32_t b = 0; b < graph_.num_bundles(); ++b) {
      const Range waits = waits_of(graph_.starts[b]);
      if (waits.size() < 2) continue;
      if (!are_alike(waits, last)) {
        implied.clear();
        for (int32_t i = 0; i < waits.size(); ++i)
          if (is_implied(i, waits)) implied.push_back(i);
      }
      last = waits;
      for (const int32_t i : implied)
        for (int32_t t = graph_.starts[b]; t < graph_.starts[b + 1]; ++t) needed[graph_.tables.first_wait[t] + i] = 0;
    }
    for (int32_t q = 0; q < flow_.num_queues; ++q) drop_repeated(q, needed);
  }

 private:
  // The last producer of a gate whose producers all are in one queue of the rank itself; else no place.
  Place last_in_one_queue(int32_t gate) const {
    Place last;
    if (is_remote_[gate]) return last;
    for (int32_t b : producers_[gate]) {
      for (int32_t t = graph_.starts[b]; t < graph_.starts[b + 1]; ++t) {
        if (places_[t].queue < 0 || (last.queue >= 0 && places_[t].queue != last.queue)) return {};
        last = {places_[t].queue, std::max(last.position, places_[t].position)};
      }
    }
    return last;
  }

  struct Range {
    const HpmoeWait *first, *last;

    const HpmoeWait* begin() const { return first; }
    const HpmoeWait* end() const { return last; }
    int32_t size() const { return static_cast<int32_t>(last - first); }
  };

  static bool are_alike(const Range& a, const Range& b) {
    return std::equal(a.first, a.last, b.first, b.last,
                      [](const HpmoeWait& x, const HpmoeWait& y) { return x.event == y.event && x.kind == y.kind; });
  }

  Range waits_of(int32_t task) const {
    return {graph_.tables.waits + graph_.tables.first_wait[task], graph_.tables.waits + graph_.tables.first_wait[task + 1]};
  }

  void drop_repeated(int32_t queue, uint8_t* needed) {
    for (int32_t i = flow_.queue_starts[queue]; i < flow_.queue_starts[queue + 1]; ++i) {
      const Range waits = waits_of(flow_.queue_tasks[i]);
      uint8_t* is_needed = needed + (waits.first - graph_.tables.waits);
      for (const HpmoeWait& wait : waits) {
        int32_t& last = made_in_[wait.event];
        if (wait.kind == 0 && *is_needed) *is_needed = last != queue;
        if (wait.kind == 0 && *is_needed) last = queue;
        ++is_needed;
      }
    }
  }

  // Of the static waits of a task.
  bool is_implied(int32_t wait, const Range& waits) {
    const HpmoeWait& mine = waits.first[wait];
    return mine.kind == 0 && std::any_of(waits.begin(), waits.end(), [&](const HpmoeWait& other) {
             if (other.kind != 0 || &other == &mine) return false;
             const std::vector<int32_t>& earlier = before(other.event);
             return std::find(earlier.begin(), earlier.end(), mine.event) != earlier.end();
           });
  }

  bool is_same_unit(int32_t a, int32_t b) const {
    const HpmoeEvent &x = flow_.events[a], &y = flow_.events[b];
    return x.extent == y.extent && x.index == y.index && x.route == y.route;
  }

  // Events of the same unit that are complete once `event` is: what its producers wait for, and before that.
  const std::vector<int32_t>& before(int32_t event) {
    std::vector<int32_t>& mine = before_[event];
    if (is_known_[event]) return mine;
    is_known_[event] = 1;
    if (!is_unit_[event] || graph_.is_block[event] || is_remote_[event]) return mine;
    const auto add = [&](int32_t e) {
      if (std::find(mine.begin(), mine.end(), e) == mine.end()) mine.push_back(e);
    };
    Range last{nullptr, nullptr};
    for (int32_t b : producers_[event]) {
      const Range waits = waits_of(graph_.starts[b]);
      if (are_alike(waits, last)) continue;
      last = waits;
      for (const HpmoeWait& wait : waits) {
        const int32_t earlier = wait.event;
        if (wait.kind != 0 || !is_same_unit(earlier, event)) continue;
        if (std::find(mine.begin(), mine.end(), earlier) != mine.end()) continue;
        add(earlier);
        for (int32_t e : before(earlier)) add(e);
      }
    }
    return mine;
  }

  const HpmoeFlow& flow_;
  const Graph& graph_;
  const Lists producers_;  // bundles of each gate
  std::vector<Place> places_;
  std::vector<uint8_t> is_remote_;  // by gate
  std::vector<Place> last_;         // by gate
  const uint8_t* is_unit_;
  std::vector<std::vector<int32_t>> before_;
  std::vector<uint8_t> is_known_;
  std::vector<int32_t> made_in_;  // the last queue in which an event is waited for
};

}  // namespace

void prune_waits(const HpmoeFlow& flow, const Graph& graph, const uint8_t* is_unit, uint8_t* needed) {
  check_queues(flow);
  if (graph.tables.facts.waits.is_sorted) return Pruner(flow, graph, is_unit).prune(needed);
  std::vector<int64_t> order(flow.num_waits);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return flow.waits[a].task < flow.waits[b].task; });
  std::vector<uint8_t> of_sorted(flow.num_waits);
  Pruner(flow, graph, is_unit).prune(of_sorted.data());
  for (int64_t i = 0; i < flow.num_waits; ++i) needed[order[i]] = of_sorted[i];
}

}  // namespace hpmoe

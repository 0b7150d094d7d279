// Which waits of tasks in queues are needed.
//
// Dropped is a wait (1) whose producers all run earlier in the same queue, (2) that an earlier task of the queue makes
// already, or (3) that the producers of another wait of the task make for the same unit. Waits are never skipped, so 1 and
// 2 always hold; 3 is limited to one unit because a unit that turns out empty is not waited for at all.
#include <algorithm>

#include "graph.h"
#include "schedule.h"

namespace hpmoe {
namespace {

struct Place {
  int32_t queue = -1, position = -1;
};

class Pruner {
 public:
  Pruner(const HpmoeFlow& flow, const uint8_t* is_unit)
      : flow_(flow), graph_(flow), users_(flow, graph_), places_(flow.num_tasks), is_remote_(flow.num_events),
        last_(flow.num_events), is_unit_(is_unit), before_(flow.num_events), is_known_(flow.num_events), made_in_(flow.num_events, -1) {
    for (int32_t q = 0; q < flow.num_queues; ++q)
      for (int32_t i = flow.queue_starts[q]; i < flow.queue_starts[q + 1]; ++i) places_[flow.queue_tasks[i]] = {q, i};
    for (int64_t i = 0; i < flow.num_signals; ++i)
      if (flow.signals[i].remote != 0) is_remote_[graph_.gate_of[flow.signals[i].event]] = 1;
    for (int32_t g = 0; g < flow.num_events; ++g) last_[g] = last_in_one_queue(g);
    static_waits_ = group(flow.num_tasks, flow.num_waits, [&](int64_t i, auto add) {
      if (flow_.waits[i].kind == 0) add(flow_.waits[i].task, static_cast<int32_t>(i));
    });
  }

  void prune(uint8_t* needed) {
    for (int64_t i = 0; i < flow_.num_waits; ++i) {
      const HpmoeWait& wait = flow_.waits[i];
      const Place last = last_[graph_.gate_of[wait.event]], here = places_[wait.task];
      needed[i] = last.queue < 0 || last.queue != here.queue || last.position >= here.position;
    }
    for (int32_t t = 0; t < flow_.num_tasks; ++t) {
      const Span waits = static_waits_[t];
      if (static_waits_.size_of(t) < 2) continue;
      for (int32_t i : waits)
        if (is_implied(i, waits)) needed[i] = 0;
    }
    for (int32_t q = 0; q < flow_.num_queues; ++q) drop_repeated(q, needed);
  }

 private:
  // The last producer of a gate whose producers all are in one queue of the rank itself; else no place.
  Place last_in_one_queue(int32_t gate) const {
    Place last;
    if (is_remote_[gate]) return last;
    for (int32_t t : users_.producers[gate]) {
      if (places_[t].queue < 0 || (last.queue >= 0 && places_[t].queue != last.queue)) return {};
      last = {places_[t].queue, std::max(last.position, places_[t].position)};
    }
    return last;
  }

  void drop_repeated(int32_t queue, uint8_t* needed) {
    for (int32_t i = flow_.queue_starts[queue]; i < flow_.queue_starts[queue + 1]; ++i) {
      for (int32_t w : static_waits_[flow_.queue_tasks[i]]) {
        int32_t& last = made_in_[flow_.waits[w].event];
        if (needed[w]) needed[w] = last != queue;
        if (needed[w]) last = queue;
      }
    }
  }

  bool is_implied(int32_t wait, const Span& waits) {
    const int32_t event = flow_.waits[wait].event;
    return std::any_of(waits.begin(), waits.end(), [&](int32_t other) {
      if (other == wait) return false;
      const std::vector<int32_t>& earlier = before(flow_.waits[other].event);
      return std::find(earlier.begin(), earlier.end(), event) != earlier.end();
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
    for (int32_t t : users_.producers[event]) {
      for (int32_t w : static_waits_[t]) {
        const int32_t earlier = flow_.waits[w].event;
        if (!is_same_unit(earlier, event) || std::find(mine.begin(), mine.end(), earlier) != mine.end()) continue;
        add(earlier);
        for (int32_t e : before(earlier)) add(e);
      }
    }
    return mine;
  }

  const HpmoeFlow& flow_;
  const Graph graph_;
  const Users users_;
  std::vector<Place> places_;
  std::vector<uint8_t> is_remote_;  // by gate
  std::vector<Place> last_;         // by gate
  const uint8_t* is_unit_;
  Lists static_waits_;  // waits of each task
  std::vector<std::vector<int32_t>> before_;
  std::vector<uint8_t> is_known_;
  std::vector<int32_t> made_in_;  // the last queue in which an event is waited for
};

}  // namespace

void prune_waits(const HpmoeFlow& flow, const uint8_t* is_unit, uint8_t* needed) { Pruner(flow, is_unit).prune(needed); }

}  // namespace hpmoe

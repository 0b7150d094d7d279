// The threads of a host that serve the workers of all ranks, in the order in which those of a launch do.
#pragma once

#include <cstdint>
#include <vector>

namespace hpmoe {

// A thread stays with a worker as long as that can go on, and goes round among every num_threads-th; where none of these has
// moved in a round it looks at the others until one does. Where it finds none it begins a new round when something has
// happened. See Launch::advance_any.
class HostThreads {
 public:
  HostThreads(int32_t num_threads, int32_t num_workers) : threads_(num_threads) {
    for (int32_t t = 0; t < num_threads; ++t) {
      for (int32_t w = t; w < num_workers; w += num_threads) threads_[t].round.push_back(w);
      threads_[t].num_own = threads_[t].round.size();
      for (int32_t w = 0; w < num_workers; ++w)
        if (w % num_threads != t) threads_[t].round.push_back(w);
    }
  }

  int32_t size() const { return static_cast<int32_t>(threads_.size()); }

  // The worker whose next task the thread runs, of those that `can_run`; -1 where none can, and the thread is idle then.
  template <class CanRun>
  int32_t find_work(int32_t thread, CanRun can_run) {
    Thread& t = threads_[thread];
    for (size_t looks = 0; looks < 2 * t.round.size(); ++looks) {  // the rest of this round, and the next
      if (can_run(t.round[t.at])) {
        t.has_moved = true;
        return t.round[t.at];
      }
      if (++t.at == t.round.size() || (t.at >= t.num_own && t.has_moved)) {
        t.at = 0;
        t.has_moved = false;
      }
    }
    t.at = 0;
    t.has_moved = false;
    t.is_idle = true;
    return -1;
  }

  // Tells `visit` of each thread that was idle and is not any more.
  template <class Visit>
  void wake_idle(Visit visit) {
    for (size_t t = 0; t < threads_.size(); ++t) {
      if (threads_[t].is_idle) visit(static_cast<int32_t>(t));
      threads_[t].is_idle = false;
    }
  }

 private:
  struct Thread {
    std::vector<int32_t> round;  // of all workers, its own first
    size_t num_own = 0, at = 0;
    bool has_moved = false, is_idle = false;
  };
  std::vector<Thread> threads_;
};

}  // namespace hpmoe

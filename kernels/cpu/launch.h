// One launch: the queues of all ranks, served by a few threads, and what they share.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/abi.h"
#include "core/image.h"
#include "core/routing.h"
#include "frame.h"
#include "interrupt.h"
#include "watchdog.h"

namespace hpmoe {

// Counters are plain int64 of the caller; these two make them atomic. A wait that sees a counter's value sees what
// was written before every addition to it.
inline void add_to_counter(int64_t* counter, int64_t amount) { __atomic_fetch_add(counter, amount, __ATOMIC_ACQ_REL); }
inline int64_t read_counter(const int64_t* counter) { return __atomic_load_n(counter, __ATOMIC_ACQUIRE); }

class Launch {
 public:
  Launch(const void* image, const HpmoeRank* ranks, double timeout_s, int64_t* trace, const InterruptWatch& watch);

  // Serves all queues with this many threads, the calling one among them, until all have left.
  Status run(int32_t num_threads);

 private:
  struct RankState {
    std::vector<int64_t> thresholds;    // [num_events]
    std::atomic<bool> is_ready{false};  // routing and thresholds are known
  };

  // A queue of a rank. Whichever thread holds it runs its tasks, in order, as far as their waits allow.
  struct Worker {
    int32_t rank, queue, next_task;
    int64_t wait_began_ns;
    std::atomic<bool> is_held{false};
  };

  void make_workers();
  void serve_all(int32_t num_threads);
  void begin_epoch();
  void check_counts();
  void serve(int32_t thread, int32_t num_threads);
  template <class Step>
  bool take_step(int32_t thread, int32_t num_threads, std::atomic<int32_t>& num_done, Step step);
  bool prepare(int32_t thread, int32_t num_threads);
  bool advance_any(int32_t thread, int32_t num_threads);
  bool advance(Worker& worker);
  bool take_task(Worker& worker);
  Code run_task(const Frame& frame);
  Frame frame_of(int32_t rank, const Task& task) const;
  // The first wait of the worker's next task that is not over; its event is -1 where there is none.
  Status find_unmet_wait(const Worker& worker, const Frame& frame) const;
  Status diagnose(const Status& timeout) const;

  // The first failure is the launch's; every thread leaves at its next look.
  void fail(const Status& status);

  const Image image_;
  const std::vector<HpmoeRank> ranks_;
  int64_t* const trace_;
  const InterruptWatch& watch_;
  Watchdog watchdog_;

  std::vector<Routing> routings_;
  std::vector<RankState> states_;
  std::atomic<int32_t> num_sorted_{0}, num_placed_{0};  // ranks that have done each step of the prologue

  std::atomic<bool> failed_{false};
  Status status_{};
  std::vector<Worker> workers_;               // [num_ranks * num_queues]
  std::atomic<int32_t> num_unfinished_{0};    // workers with tasks left
};

}  // namespace hpmoe

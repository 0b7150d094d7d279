// One launch: a worker thread for every queue of every rank, all at once, and what they share.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "abi.h"
#include "image.h"
#include "interrupt.h"
#include "routing.h"
#include "stuck.h"

namespace hpmoe {

// Counters are plain int64 of the caller; these two make them atomic. A wait that sees a counter's value sees what
// was written before every addition to it.
inline void add_to_counter(int64_t* counter, int64_t amount) { __atomic_fetch_add(counter, amount, __ATOMIC_ACQ_REL); }
inline int64_t read_counter(const int64_t* counter) { return __atomic_load_n(counter, __ATOMIC_ACQUIRE); }

int64_t now_ns();

class Launch {
 public:
  Launch(const void* image, const HpmoeRank* ranks, double timeout_s, int64_t* trace, const InterruptWatch& watch);

  // Starts all workers, joins them, and begins the next epoch of the counters.
  Status run();

 private:
  struct RankState {
    std::vector<int64_t> thresholds;    // [num_events]
    std::atomic<bool> is_ready{false};  // routing and thresholds are known
  };

  void start_workers();
  void begin_epoch();
  void work(int32_t rank, int32_t queue);
  void run_queue(int32_t rank, int32_t queue);
  void run_task(int32_t rank, int32_t queue, int32_t task);
  bool prepare(int32_t rank);
  bool meet(int32_t rank, std::atomic<int32_t>& arrived);
  bool wait_for_task(int32_t rank, int32_t queue, int32_t index, const Task& task, int32_t expert);

  // OK once ready() holds, else why not: TIMEOUT when no task has ended anywhere for that long, INTERRUPTED, or
  // ABORTED_PEER when another worker has failed.
  template <class Ready>
  Code wait_until(Ready ready);
  // The first failure is the launch's; every worker leaves at its next look.
  void fail(const Status& status);
  Stand& stand_of(int32_t rank, int32_t queue) {
    return stands_[static_cast<size_t>(rank) * image_.header->num_queues + queue];
  }

  const Image image_;
  const std::vector<HpmoeRank> ranks_;
  const int64_t timeout_ns_;
  int64_t* const trace_;
  const InterruptWatch& watch_;

  std::vector<Routing> routings_;
  std::vector<RankState> states_;
  std::atomic<int32_t> sorted_{0}, placed_{0};  // ranks that have done each step of the prologue

  std::atomic<bool> failed_{false};
  Status status_{};
  std::atomic<int64_t> last_progress_ns_{0};  // when a task last ended, anywhere
  std::vector<Stand> stands_;                 // [num_ranks * num_queues], each written by its own worker
  std::vector<std::thread> workers_;
};

// threshold = mult * extent for every event of a rank, once its routing is known.
std::vector<int64_t> find_thresholds(const Image& image, const std::vector<Routing>& routings, int32_t rank,
                                     int64_t num_tokens);

}  // namespace hpmoe

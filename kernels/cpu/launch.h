// One launch: a few threads serve the queues of the ranks of this process.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/abi.h"
#include "core/image.h"
#include "core/routing.h"
#include "frame.h"
#include "link/interrupt.h"
#include "link/peers.h"
#include "link/watchdog.h"

namespace hpmoe {

// The records of a launch that core/abi.h describes; NULL for a record that the caller does not need.
struct Record {
  int64_t *trace, *moved;
};

class Launch {
 public:
  Launch(const Image& image, Peers& peers, double timeout_s, const Record& record, const InterruptWatch& watch);

  // Serves all queues with num_threads threads, the calling one included, until all threads have left.
  Status run(int32_t num_threads);

 private:
  struct RankState {
    std::vector<int64_t> thresholds;    // [num_events]
    std::atomic<bool> is_ready{false};  // routing and thresholds are known
  };

  // A queue of a rank. The thread that holds it runs its tasks in order, as far as their waits allow.
  struct Worker {
    int32_t rank, queue, next_task;
    int64_t wait_began_ns;
    std::atomic<bool> is_held{false};
  };

  // A step that threads take for one rank after another: the next free thread takes the next rank.
  struct Step {
    const int32_t first, last;
    std::atomic<int32_t> num_taken{0}, num_done{0};
    bool is_done() const { return num_done.load(std::memory_order_seq_cst) == last - first; }
  };

  void make_workers();
  Worker* workers_of(int32_t rank) { return &workers_[size_t(rank - peers_.first()) * image_.header->num_queues]; }
  void serve_all(int32_t num_threads);
  void await_signals();
  void check_counts();
  void serve(int32_t thread, int32_t num_threads);
  template <class Do>
  bool take_step(Step& step, Do act);
  bool meet(int32_t thread);
  bool prepare(int32_t thread);
  bool advance_any(int32_t thread, int32_t num_threads);
  bool advance(Worker& worker);
  bool take_task(Worker& worker);
  Code run_task(const Frame& frame);
  void move(const Frame& frame, const Segment& segment);
  Frame frame_of(int32_t rank, const Task& task) const;
  // Returns the first unmet wait of the worker's next task; its event is -1 if all waits are met.
  Status find_unmet_wait(const Worker& worker, const Frame& frame) const;
  Status diagnose(const Status& timeout) const;

  // Records the first failure of the launch; every thread leaves at its next check.
  void fail(const Status& status);

  const Image image_;
  Peers& peers_;
  const Record record_;
  const InterruptWatch& watch_;
  Watchdog watchdog_;

  std::vector<Routing> routings_;
  std::vector<RankState> states_;
  std::atomic<bool> has_met_{false};
  Step sorting_, placing_, counting_;  // of the prologue

  std::atomic<bool> failed_{false};
  Status status_{};
  std::vector<Worker> workers_;               // [served ranks * num_queues]
  std::atomic<int32_t> num_unfinished_{0};    // workers with tasks left
};

}  // namespace hpmoe

// The threads of a launch: the caller's own, and helpers that stay for later launches. To make a thread and see it end
// takes longer than to wake one, and longer than many a task.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

namespace hpmoe {

// Runs a job on several threads, on the calling one as the first.
class ThreadPool {
 public:
  // `job` is given the number of its thread, and throws nothing.
  explicit ThreadPool(std::function<void(int32_t)> job) : job_(std::move(job)) {}
  ~ThreadPool() { wait(); }
  ThreadPool(const ThreadPool&) = delete;

  // Begins the job on another thread. False where the system gives no more threads or memory.
  bool start(int32_t thread);
  // Does the job here.
  void work() { job_(0); }
  // Returns when all that were started are done.
  void wait() const;

 private:
  friend class Helper;

  const std::function<void(int32_t)> job_;
  int32_t num_started_ = 0;
  std::atomic<int32_t> num_done_{0};
};

// Cores that the calling thread may run on.
int32_t num_cores();

}  // namespace hpmoe

// The threads of a launch: the caller's own, and helpers that stay for later launches. To make a thread and see it end
// takes longer than to wake one, and longer than many a task.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace hpmoe {

class Helper;

// Runs a job on several threads, on the calling one as the first. A helper that has not begun when the caller waits does not
// begin: the calling thread has done the job alone by then, and waking a thread may take longer.
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
  // Takes the job back from helpers that have not begun, and returns when the others are done.
  void wait();

 private:
  friend class Helper;

  const std::function<void(int32_t)> job_;
  std::vector<std::shared_ptr<Helper>> woken_;
  int32_t num_started_ = 0;
  std::atomic<int32_t> num_done_{0};
};

// Cores that the calling thread may run on.
int32_t num_cores();

}  // namespace hpmoe

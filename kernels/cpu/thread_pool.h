// The threads of a launch: the calling thread, and helpers that wait for later launches. Creating a thread takes longer
// than waking one, and longer than many tasks.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace hpmoe {

class Helper;

// Runs a job on several threads; the calling thread is the first. A helper that has not begun when wait() is called does
// not begin: the calling thread has done the whole job by then.
class ThreadPool {
 public:
  // `job` takes the number of its thread and must not throw.
  explicit ThreadPool(std::function<void(int32_t)> job) : job_(std::move(job)) {}
  ~ThreadPool() { wait(); }
  ThreadPool(const ThreadPool&) = delete;

  // Starts the job on another thread. Returns false if the system has no thread or memory left.
  bool start(int32_t thread);
  // Runs the job on the calling thread.
  void work() { job_(0); }
  // Takes the job back from helpers that have not begun; returns when the others are done.
  void wait();

 private:
  friend class Helper;

  const std::function<void(int32_t)> job_;
  std::vector<std::shared_ptr<Helper>> woken_;
  int32_t num_started_ = 0;
  std::atomic<int32_t> num_done_{0};
};

// Number of cores that the calling thread may run on.
int32_t num_cores();

}  // namespace hpmoe

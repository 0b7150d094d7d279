#include "thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <tuple>

#include "signals_blocked.h"

namespace hpmoe {

using Clock = std::chrono::steady_clock;

// Calls of a layer follow each other after about so long. Waking a thread that sleeps takes 10 to 20 microseconds, and on a
// busy machine longer than a call of few tokens.
constexpr auto kAwake = std::chrono::microseconds(200);

// A thread that runs one job after another.
class Helper : public std::enable_shared_from_this<Helper> {
 public:
  // The thread's loop: a first job, then further jobs. The thread ends if enough others are idle.
  static void live(ThreadPool* pool, int32_t thread);

  void take(ThreadPool* pool, int32_t thread) {
    const std::lock_guard<std::mutex> lock(mutex_);
    pool_ = pool;
    thread_ = thread;
    has_job_.notify_one();
  }

  // Takes the job back. Returns true if the helper had not begun the pool's job; it is idle again then.
  bool give_back(const ThreadPool* pool);

 private:
  // Spins for kAwake, then sleeps, until there is a job.
  std::pair<ThreadPool*, int32_t> next_job() {
    for (const auto end = Clock::now() + kAwake; !pool_.load(std::memory_order_relaxed) && Clock::now() < end;)
      std::this_thread::yield();
    std::unique_lock<std::mutex> lock(mutex_);
    has_job_.wait(lock, [this] { return pool_ != nullptr; });
    return {pool_.exchange(nullptr), thread_};
  }

  std::mutex mutex_;
  std::condition_variable has_job_;
  std::atomic<ThreadPool*> pool_{nullptr};
  int32_t thread_ = 0;
};

namespace {

constexpr int kSpins = 2000;

// Idle helpers, the most recent first: their stacks and scratch memory are in the caches.
class Idle {
 public:
  Idle() { helpers_.reserve(std::max(1u, std::thread::hardware_concurrency())); }

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  void forget() { helpers_.clear(); }

  bool add(std::shared_ptr<Helper> helper) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (helpers_.size() == helpers_.capacity()) return false;
    helpers_.push_back(std::move(helper));
    return true;
  }

  std::shared_ptr<Helper> take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (helpers_.empty()) return nullptr;
    std::shared_ptr<Helper> last = std::move(helpers_.back());
    helpers_.pop_back();
    return last;
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Helper>> helpers_;
};

Idle& idle() {
  static Idle* const forever = new Idle;  // helpers outlive the program's static objects
  return *forever;
}

// A forked process has none of the helpers.
void forget_all() {
  idle().forget();
  idle().unlock();
}

const int kForkHandled = pthread_atfork([] { idle().lock(); }, [] { idle().unlock(); }, forget_all);

}  // namespace

void Helper::live(ThreadPool* pool, int32_t thread) {
  const auto self = std::make_shared<Helper>();
  for (bool stays = true; stays;) {
    pool->job_(thread);
    stays = idle().add(self);  // before the pool is done, so that the caller's next pool finds it
    pool->num_done_.fetch_add(1, std::memory_order_release);
    if (stays) std::tie(pool, thread) = self->next_job();
  }
}

bool Helper::give_back(const ThreadPool* pool) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (pool_ != pool || !idle().add(shared_from_this())) return false;
  pool_ = nullptr;
  return true;
}

bool ThreadPool::start(int32_t thread) {
  if (std::shared_ptr<Helper> helper = idle().take()) {
    helper->take(this, thread);
    woken_.push_back(std::move(helper));
  } else {
    try {
      const SignalsBlocked in_helpers;  // the program's own threads receive signals
      std::thread(Helper::live, this, thread).detach();
    } catch (const std::exception&) {
      return false;
    }
  }
  ++num_started_;
  return true;
}

void ThreadPool::wait() {
  for (const std::shared_ptr<Helper>& helper : woken_) num_started_ -= helper->give_back(this);
  for (int i = 0; num_done_.load(std::memory_order_acquire) < num_started_; ++i) {
    if (i >= kSpins) std::this_thread::yield();
  }
}

int32_t num_cores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return std::max(1, CPU_COUNT(&cores));
  return static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));  // more cores than a cpu_set_t holds
}

}  // namespace hpmoe

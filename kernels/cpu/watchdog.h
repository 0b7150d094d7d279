// How the threads of a launch wait: as long as a task ends anywhere now and then.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "interrupt.h"
#include "core/protocol.h"

namespace hpmoe {

inline int64_t now_ns() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

class Watchdog {
 public:
  // `has_failed`: whether a thread of the launch has, so that the others leave.
  Watchdog(double timeout_s, const InterruptWatch& watch, const std::atomic<bool>& has_failed)
      : timeout_ns_(in_nanoseconds(timeout_s)), watch_(watch), has_failed_(has_failed) {}

  // A task has ended, or the first are about to begin.
  void note_progress(int64_t now) { last_progress_ns_.store(now, std::memory_order_relaxed); }

  // OK once ready() holds, else why not: TIMEOUT when no task has ended anywhere for that long, INTERRUPTED, or
  // ABORTED_PEER when another thread has failed.
  template <class Ready>
  Code wait_until(Ready ready) const {
    for (int i = 0; i < kSpins; ++i) {
      if (ready()) return Code::OK;
      pause_briefly();
    }
    int64_t waited = 0, progress = last_progress_ns_.load(std::memory_order_relaxed);
    for (int64_t last = now_ns(); !ready();) {
      if (has_failed_.load(std::memory_order_relaxed)) return Code::ABORTED_PEER;
      if (watch_.is_interrupted()) return Code::INTERRUPTED;
      const int64_t now = now_ns(), latest = last_progress_ns_.load(std::memory_order_relaxed);
      watch_.keep(now);
      waited = latest == progress ? waited + std::min(now - last, kLongestLook) : 0;
      if (waited > timeout_ns_) return Code::TIMEOUT;
      last = now;
      progress = latest;
      std::this_thread::yield();
    }
    return Code::OK;
  }

 private:
  static constexpr int kSpins = 200;
  // Of the time between two looks no more than this is waiting: the process may have been stopped, or the machine asleep.
  static constexpr int64_t kLongestLook = 50'000'000;

  static int64_t in_nanoseconds(double seconds) {
    constexpr double kMost = 1e9;  // some thirty years: infinity is a timeout too
    return static_cast<int64_t>((seconds < kMost ? seconds > 0 ? seconds : 0 : kMost) * 1e9);
  }

  static void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  const int64_t timeout_ns_;
  const InterruptWatch& watch_;
  const std::atomic<bool>& has_failed_;
  std::atomic<int64_t> last_progress_ns_{0};
};

}  // namespace hpmoe

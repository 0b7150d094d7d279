// The waits of a launch's threads: a wait continues as long as tasks end somewhere.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "core/generated/structs.h"
#include "link/interrupt.h"
#include "link/link.h"

namespace hpmoe {

inline int64_t now_ns() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

class Watchdog {
 public:
  // `has_failed`: set if a thread of the launch has failed, so that the others leave. `link`: to other processes, or
  // NULL.
  Watchdog(double timeout_s, const InterruptWatch& watch, const std::atomic<bool>& has_failed, Link* link)
      : timeout_ns_(in_nanoseconds(timeout_s)),
        watch_(watch),
        has_failed_(has_failed),
        link_(link),
        progress_ns_(link ? link->mine().progress_ns : own_progress_ns_) {}

  // Notes that a task has ended, or that the first tasks begin.
  void note_progress(int64_t now) { progress_ns_.store(now, std::memory_order_relaxed); }

  // Returns OK once ready() holds. Otherwise returns TIMEOUT if no task has ended anywhere for the timeout, INTERRUPTED,
  // ABORTED_PEER if another thread has failed, or the trouble of the link.
  template <class Ready>
  Code wait_until(Ready ready) const {
    for (int i = 0; i < num_spins(); ++i) {
      if (ready()) return Code::OK;
      pause_briefly();
    }
    for (int i = 0; link_ && i < kYields; ++i) {
      if (ready()) return Code::OK;
      std::this_thread::yield();
    }
    int64_t waited = 0, asked = 0, progress = latest_progress(), last = now_ns();
    while (!ready()) {
      if (has_failed_.load(std::memory_order_relaxed)) return Code::ABORTED_PEER;
      if (watch_.is_interrupted()) return Code::INTERRUPTED;
      const int64_t now = now_ns(), latest = latest_progress();
      watch_.keep(now);
      waited = latest == progress ? waited + std::min(now - last, kLongestLook) : 0;
      asked = std::min(asked, waited);
      if (waited > std::min(timeout_ns_, asked + kBetweenAsks)) {
        if (link_ && link_->is_any_stopped()) {
          waited = 0;
        } else if (waited > timeout_ns_) {
          return Code::TIMEOUT;
        }
        asked = waited;
      }
      last = now;
      progress = latest;
      if (!link_) {
        std::this_thread::yield();
      } else if (const Code code = link_->find_trouble(now); code != Code::OK) {
        return code;
      } else if (sleep_until_rung(link_->mine(), kLongestSleep, ready)) {
        return Code::OK;
      }
    }
    return Code::OK;
  }

  // Waits for threads of this launch that finish by themselves. Returns OK, or ABORTED_PEER if a thread has failed. It
  // does not ask the link, because another thread may be about to meet.
  template <class Ready>
  Code wait_for_threads(Ready ready) const {
    for (int64_t looks = 0; !ready(); ++looks) {
      if (has_failed_.load(std::memory_order_relaxed)) return Code::ABORTED_PEER;
      if (looks < num_spins()) {
        pause_briefly();
      } else if (!link_ || looks < num_spins() + kYields) {
        std::this_thread::yield();
      } else if (sleep_until_rung(link_->mine(), kLongestSleep, ready)) {
        return Code::OK;
      }
    }
    return Code::OK;
  }

 private:
  // A process that shares its cores yields at once.
  static constexpr int kSpins = 200, kSpinsInCrowd = 2, kYields = 20;
  // Between two checks at most this time counts as waiting: the process may have been stopped, or the machine suspended.
  static constexpr int64_t kLongestLook = 50'000'000;
  // Interval of checks for stopped ranks; a rank that continues then has nearly the whole timeout left.
  static constexpr int64_t kBetweenAsks = 100'000'000;
  // Longest sleep, which limits the delay if a process dies before it rings.
  static constexpr int64_t kLongestSleep = 2'000'000;

  static int64_t in_nanoseconds(double seconds) {
    constexpr double kMost = 1e9;  // about thirty years; an infinite timeout is valid
    return static_cast<int64_t>((seconds < kMost ? seconds > 0 ? seconds : 0 : kMost) * 1e9);
  }

  int num_spins() const { return link_ && link_->is_crowded() ? kSpinsInCrowd : kSpins; }

  static void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  int64_t latest_progress() const { return link_ ? link_->latest_progress() : progress_ns_.load(std::memory_order_relaxed); }

  const int64_t timeout_ns_;
  const InterruptWatch& watch_;
  const std::atomic<bool>& has_failed_;
  Link* const link_;
  std::atomic<int64_t> own_progress_ns_{0};
  std::atomic<int64_t>& progress_ns_;
};

}  // namespace hpmoe

// The wait of an engine: watches files, and wakes up on a call from any thread.
#pragma once

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace hpmoe {

class Poller {
 public:
  Poller() : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;
  ~Poller() {
    if (epoll_ >= 0) close(epoll_);
    if (wake_ >= 0) close(wake_);
  }

  // Returns false if the system has no more files.
  bool open() const { return epoll_ >= 0 && wake_ >= 0 && watch(wake_, kWake); }

  // Watches a file under a name that wait() reports.
  bool watch(int file, uint64_t name) const { return control(EPOLL_CTL_ADD, file, name, EPOLLIN); }
  bool watch_also_writable(int file, uint64_t name, bool is_on) const {
    return control(EPOLL_CTL_MOD, file, name, is_on ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }

  // Waits until a watched file has an event, or for at most `longest_ns`; returns the events.
  const std::vector<epoll_event>& wait(int64_t longest_ns) {
    ready_.resize(kMost);
    const int longest_ms = static_cast<int>((longest_ns + 999'999) / 1'000'000);
    ready_.resize(std::max(epoll_wait(epoll_, ready_.data(), kMost, longest_ms), 0));
    const auto is_wake = [](const epoll_event& event) { return event.data.u64 == kWake; };
    const auto woken = std::remove_if(ready_.begin(), ready_.end(), is_wake);
    uint64_t times = 0;
    while (woken != ready_.end() && read(wake_, &times, sizeof times) > 0) {
    }
    ready_.erase(woken, ready_.end());
    return ready_;
  }

  void wake() const {
    const uint64_t once = 1;
    [[maybe_unused]] const auto written = write(wake_, &once, sizeof once);
  }

 private:
  static constexpr uint64_t kWake = ~uint64_t{0};
  static constexpr int kMost = 32;

  bool control(int how, int file, uint64_t name, uint32_t events) const {
    epoll_event event{events, {}};
    event.data.u64 = name;
    return epoll_ctl(epoll_, how, file, &event) == 0;
  }

  const int epoll_, wake_;
  std::vector<epoll_event> ready_;
};

}  // namespace hpmoe

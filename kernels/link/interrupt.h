// Catches Ctrl-C during a launch: the workers leave, and the host learns of it.
#pragma once

#include <atomic>
#include <cstdint>

namespace hpmoe {

// During its lifetime SIGINT is counted here instead of reaching the previous handler, which in a process that embeds
// other libraries may end the process.
class InterruptWatch {
 public:
  explicit InterruptWatch(bool is_wanted);
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  bool is_interrupted() const;
  // Restores the previous handler. Returns true if a SIGINT arrived that no watch has reported.
  bool end();
  // Installs this handler again if another thread has restored the handler of its library. Checks only if `now` is some
  // milliseconds after the last check.
  void keep(int64_t now) const;

 private:
  bool is_wanted_;
  const int32_t seen_;
  mutable std::atomic<int64_t> looked_{0};  // nanoseconds
};

}  // namespace hpmoe

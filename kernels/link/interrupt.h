// Ctrl-C during a launch: the workers must leave, and the host must learn of it.
#pragma once

#include <atomic>
#include <cstdint>

namespace hpmoe {

// While one of these lives, SIGINT counts here instead of going to the handler that was there before: in a process that
// embeds other libraries that may be one of theirs, which ends it.
class InterruptWatch {
 public:
  explicit InterruptWatch(bool is_wanted);
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  bool is_interrupted() const;
  // Gives SIGINT back; whether one has come that no watch has told of.
  bool end();
  // Takes SIGINT back where another thread has put a handler of its library over ours. Now and then is enough: it only
  // looks where `now` is some milliseconds after the last look.
  void keep(int64_t now) const;

 private:
  bool is_wanted_;
  const int32_t seen_;
  mutable std::atomic<int64_t> looked_{0};  // nanoseconds
};

}  // namespace hpmoe

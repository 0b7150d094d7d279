// Ctrl-C during a launch: the workers must leave, and the host must still get its signal.
#pragma once

#include <atomic>
#include <cstdint>

namespace hpmoe {

// While one of these lives, SIGINT also counts here; the handler that was there before runs too.
class InterruptWatch {
 public:
  explicit InterruptWatch(bool is_wanted);
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  bool is_interrupted() const;

 private:
  const bool is_wanted_;
  const int32_t seen_;
};

}  // namespace hpmoe

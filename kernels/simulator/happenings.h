// What will happen in a simulated run, in the order of time.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "rate_ends.h"

namespace hpmoe {

// What happens at a time: a worker begins the body of a task, its own part of one ends, a shared rate has served a demand,
// a signal arrives, or a worker comes to a task or back to its wait. Equal times go in the order in which they were
// foreseen.
struct Happening {
  enum Kind : int32_t { BODY, CORE, RATE, SIGNAL, WAKE };
  static constexpr int64_t kKinds = 8;

  double time;
  int64_t order;  // kKinds times the place in the order, and the kind
  int32_t who;    // worker, rate, or rank of a signal
  int32_t event, amount, source;  // of a signal: source is the task that sent it, counted over ranks and places

  Kind kind() const { return static_cast<Kind>(order % kKinds); }
  bool operator>(const Happening& other) const { return time != other.time ? time > other.time : order > other.order; }
};

static_assert(sizeof(Happening) == 32, "two to a cache line");

class Happenings {
 public:
  explicit Happenings(int32_t num_rates) : rates_(num_rates) {}

  void foresee(double time, Happening::Kind kind, int32_t who, int64_t event = 0, int64_t amount = 0, int64_t source = -1) {
    queue_.push({time, num_foreseen_++ * Happening::kKinds + kind, who, static_cast<int32_t>(event),
                 static_cast<int32_t>(amount), static_cast<int32_t>(source)});
  }

  // Sets the next end of a demand on a rate; replaces the rate's former one.
  void foresee_rate(double time, int32_t rate) {
    rates_.set(rate, {time, num_foreseen_++ * Happening::kKinds + Happening::RATE});
  }

  void forget_rate(int32_t rate) { rates_.remove(rate); }

  bool is_empty() const { return queue_.empty() && rates_.is_empty(); }

  // Of a rate whoever serves it has to say its next end, or that there is none.
  Happening take_next() {
    if (!rates_.is_empty()) {
      const Foreseen end = rates_.first();
      const Happening next{end.time, end.order, rates_.first_rate(), 0, 0, -1};
      if (queue_.empty() || queue_.top() > next) return next;
    }
    const Happening next = queue_.top();
    queue_.pop();
    return next;
  }

 private:
  std::priority_queue<Happening, std::vector<Happening>, std::greater<Happening>> queue_;
  RateEnds rates_;
  int64_t num_foreseen_ = 0;
};

}  // namespace hpmoe

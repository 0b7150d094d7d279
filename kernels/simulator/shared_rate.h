// A rate that everyone who uses it at a moment shares equally: memory bandwidth, one direction of a link.
#pragma once

#include <algorithm>
#include <cstdint>
#include <queue>
#include <vector>

#include "amount_over_time.h"

namespace hpmoe {

// Each user gets min(cap, rate / users) of it; while a wide one is there, that of the whole device, nothing caps a share.
// What that adds up to for one user since the start is `served_`: a demand for `amount` ends when served_ has grown by it,
// whoever comes and goes meanwhile.
class SharedRate {
 public:
  SharedRate(double rate, double cap, int32_t num_bins) : rate_(rate), cap_(cap), over_time_(num_bins) {}

  // A demand begins at `now`; `user` is told when it ends.
  void begin(double now, double amount, int32_t user, bool is_wide) {
    advance(now);
    total_ += amount;
    num_wide_ += is_wide;
    ends_.push({served_ + amount, user, is_wide});
    set_speed();
  }

  // Takes out a demand that has ended by `now`: its user, or -1.
  int32_t end_one(double now) {
    advance(now);
    if (ends_.empty()) return -1;
    // What is left is below what the clock can tell apart, else it would never end.
    const double least = 1e-12 * (served_ + now * speed_) + 1e-9;
    if (ends_.top().at > served_ + least) return -1;
    const int32_t user = ends_.top().user;
    num_wide_ -= ends_.top().is_wide;
    ends_.pop();
    set_speed();
    return user;
  }

  bool is_idle() const { return ends_.empty(); }
  // Time at which the next demand ends if no demand is added or removed before.
  double next_end() const { return last_ + std::max(0.0, ends_.top().at - served_) / speed_; }
  double total() const { return total_; }      // of all demands
  double busy_us() const { return busy_us_; }  // during which there was a demand
  AmountOverTime& over_time() { return over_time_; }  // what was served when

 private:
  // What each user gets, which changes only as users come and go.
  void set_speed() {
    if (ends_.empty()) return;
    const double share = rate_ / static_cast<double>(ends_.size());
    speed_ = num_wide_ > 0 ? share : std::min(cap_, share);
  }

  void advance(double now) {
    if (now == last_) return;
    if (!ends_.empty()) {
      served_ += (now - last_) * speed_;
      busy_us_ += now - last_;
      over_time_.add(last_, now, (now - last_) * speed_ * static_cast<double>(ends_.size()));
    }
    last_ = now;
  }

  struct End {
    double at;
    int32_t user;
    bool is_wide;

    bool operator>(const End& other) const { return at != other.at ? at > other.at : user > other.user; }
  };
  double rate_, cap_, speed_ = 0, served_ = 0, last_ = 0, total_ = 0, busy_us_ = 0;
  int32_t num_wide_ = 0;
  AmountOverTime over_time_;
  std::priority_queue<End, std::vector<End>, std::greater<End>> ends_;
};

}  // namespace hpmoe

// When each shared rate will next have served a demand, the first of all rates at hand.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace hpmoe {

struct Foreseen {
  double time;
  int64_t order;  // of what was foreseen for the same time the first goes first

  bool operator<(const Foreseen& other) const { return time != other.time ? time < other.time : order < other.order; }
};

// A binary heap of the rates that have an end, in which each knows its place: a rate's end moves whenever a demand comes.
class RateEnds {
 public:
  explicit RateEnds(int32_t num_rates) : ends_(num_rates), place_(num_rates, -1) {}

  bool is_empty() const { return heap_.empty(); }
  int32_t first_rate() const { return heap_.front(); }
  const Foreseen& first() const { return ends_[heap_.front()]; }

  void set(int32_t rate, const Foreseen& end) {
    ends_[rate] = end;
    if (place_[rate] < 0) {
      place_[rate] = static_cast<int32_t>(heap_.size());
      heap_.push_back(rate);
    }
    sink(rise(place_[rate]));
  }

  // The rate has no end any more; it may have had none.
  void remove(int32_t rate) {
    const int32_t at = place_[rate];
    if (at < 0) return;
    put(heap_.back(), at);
    heap_.pop_back();
    place_[rate] = -1;
    if (static_cast<size_t>(at) < heap_.size()) sink(rise(at));
  }

 private:
  void put(int32_t rate, size_t at) {
    heap_[at] = rate;
    place_[rate] = static_cast<int32_t>(at);
  }

  bool is_before(size_t a, size_t b) const { return ends_[heap_[a]] < ends_[heap_[b]]; }

  void swap(size_t a, size_t b) {
    const int32_t rate = heap_[a];
    put(heap_[b], a);
    put(rate, b);
  }

  size_t rise(size_t at) {
    for (size_t above; at > 0 && is_before(at, above = (at - 1) / 2); at = above) swap(at, above);
    return at;
  }

  void sink(size_t at) {
    for (size_t next; (next = 2 * at + 1) < heap_.size(); at = next) {
      if (next + 1 < heap_.size() && is_before(next + 1, next)) ++next;
      if (!is_before(next, at)) return;
      swap(next, at);
    }
  }

  std::vector<Foreseen> ends_;  // of each rate
  std::vector<int32_t> heap_;   // rates, each before those at twice its place
  std::vector<int32_t> place_;  // of each rate in the heap, or -1
};

}  // namespace hpmoe

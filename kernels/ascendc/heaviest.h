// Finds the heaviest entries of an expert that is over its capacity: the key of the lightest kept entry, and the last
// kept entry with this key. Experts are divided among the cores; the list of all entries is sorted by expert.
#pragma once

#include "entry_sort.h"

namespace hpmoe {

class Heaviest {
 public:
  __aicore__ inline Heaviest(PrologueUnit& on, int32_t number)
      : on_(on),
        route_(on.rank.image.route(number)),
        tables_(on.rank.image.tables(number, on.rank.num_aiv)),
        weights_(deciding_weights(on, route_)),
        shards_(shards_of(route_, on.rank.image.header().ep_size)),
        capacity_(on.capacity(number)) {
    UbWords ub(on);
    all_ = ub.take(tables_.width);
    before_ = ub.take(tables_.width);
    tallies_ = ub.take(kDigits);
    entries_ = ub.take(kAtOnce);
    found_ = ub.take(2 * kBlockBytes / 4);
  }

  __aicore__ inline void run() {
    on_.sum_shares(tables_.shares, tables_.width, all_, before_, entries_, kAtOnce);
    for (int32_t e = 0, start = 0; e < route_.num_experts; ++e) {
      const int32_t count = all_.GetValue(e);
      if (e % on_.rank.num_aiv == on_.core) leave(e, count > capacity_ ? find(start, count) : Limit{0, -1});
      start += count;
    }
  }

 private:
  static constexpr int32_t kDigits = 256, kAtOnce = 2048;
  struct Limit {
    uint32_t key;
    int32_t last;
  };

  __aicore__ inline void leave(int32_t e, const Limit& limit) {
    drain_pipes();
    found_.SetValue(0, static_cast<int32_t>(limit.key));
    found_.SetValue(kBlockBytes / 4, limit.last);
    on_.publish();
    on_.write(on_.word(tables_.lightest + e), found_, 1);
    on_.write(on_.word(tables_.last + e), found_[kBlockBytes / 4], 1);
  }

  // Selects digit by digit, from the highest: counts the next digit of the keys that begin with the digits found so far.
  __aicore__ inline Limit find(int32_t start, int32_t count) {
    uint32_t key = 0, mask = 0;
    int32_t wanted = capacity_;
    for (int32_t shift = 24; shift >= weights_.lowest_digit(); shift -= 8) {
      on_.clear(tallies_, kDigits);
      for (int32_t i = 0; i < count; ++i) {
        const uint32_t next = key_at(start, count, i);
        if ((next & mask) != key) continue;
        const auto digit = static_cast<int32_t>(next >> shift & 255u);
        tallies_.SetValue(digit, tallies_.GetValue(digit) + 1);
      }
      int32_t digit = kDigits - 1;
      for (; digit > 0 && tallies_.GetValue(digit) < wanted; --digit) wanted -= tallies_.GetValue(digit);
      key |= static_cast<uint32_t>(digit) << shift;
      mask |= 255u << shift;
    }
    return {key, find_last(start, count, key, wanted)};
  }

  __aicore__ inline int32_t find_last(int32_t start, int32_t count, uint32_t key, int32_t wanted) {
    for (int32_t i = 0; i < count; ++i) {
      if (key_at(start, count, i) == key && --wanted == 0) return entries_.GetValue(i % kAtOnce);
    }
    return -1;
  }

  // Returns the key of the expert's i-th entry; entries are read in batches, in order.
  __aicore__ inline uint32_t key_at(int32_t start, int32_t count, int32_t i) {
    if (i % kAtOnce == 0) {
      drain_pipes();
      on_.read(entries_, on_.word(tables_.entries + start + i), least(kAtOnce, count - i));
      on_.unit.wait_for_loads();
    }
    return weights_.key(weights_.bits(shards_.choice_of(entries_.GetValue(i % kAtOnce))));
  }

  PrologueUnit& on_;
  const RouteWords route_;
  const RouteTables tables_;
  const DecidingWeights weights_;
  const Shards shards_;
  const int32_t capacity_;
  Words all_, before_, tallies_, entries_, found_;
};

}  // namespace hpmoe

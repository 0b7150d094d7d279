// Sorts the entries of a route to ranks: for each rank that a token goes to, the first of its kept entries there. Lists
// for each of them the experts that the token has on that rank. Runs after the experts' route is sorted.
#pragma once

#include "prologue_unit.h"

namespace hpmoe {

class RankSort {
 public:
  __aicore__ inline RankSort(PrologueUnit& on, int32_t number)
      : on_(on),
        route_(on.rank.image.route(number)),
        tables_(on.rank.image.tables(number, on.rank.num_aiv)),
        experts_(on.rank.image.tables(route_.of, on.rank.num_aiv)),
        num_local_(on.rank.image.route(route_.of).num_local_experts) {
    UbWords ub(on);
    Words* const by_rank[] = {&rows_, &fans_, &next_row_, &next_start_, &next_fan_, &newest_, &work_};
    for (Words* table : by_rank) *table = ub.take(tables_.width);
    const int32_t part = ub.capacity(kNumParts, PrologueUnit::slack(num_ranks()));
    Words* const of_chunk[] = {&ranks_, &places_, &firsts_, &entries_, &starts_};
    for (Words* list : of_chunk) *list = ub.take(part);
    records_ = ub.take(2 * part);
    staged_ = ub.take(2 * part);
    chunk_ = part / route_.top_k * route_.top_k;
  }

  // Counts the rows that this core's tokens send to each rank.
  __aicore__ inline void count() {
    drain_pipes();
    on_.clear(rows_, tables_.width);
    on_.clear(fans_, tables_.width);
    int32_t first, last;
    on_.share(route_, &first, &last);
    for (int32_t begin = first; begin < last; begin += chunk_) {
      const int32_t count = least(chunk_, last - begin);
      read_chunk(begin, count);
      for (int32_t i = 0; i < count; ++i) {
        const int32_t rank = look_at(begin, i);
        if (rank >= 0) fans_.SetValue(rank, fans_.GetValue(rank) + 1);
        if (firsts_.GetValue(i) >= 0) rows_.SetValue(rank, rows_.GetValue(rank) + 1);
      }
    }
    on_.publish();
    on_.write(on_.word(tables_.shares + on_.core * tables_.width), rows_, tables_.width);
    on_.write(on_.word(tables_.fan_shares + on_.core * tables_.width), fans_, tables_.width);
  }

  __aicore__ inline void sort() {
    on_.sum_shares(tables_.shares, tables_.width, rows_, next_row_, staged_, 2 * chunk_);
    on_.sum_shares(tables_.fan_shares, tables_.width, fans_, next_fan_, staged_, 2 * chunk_);
    find_starts();
    int32_t first, last;
    on_.share(route_, &first, &last);
    for (int32_t begin = first; begin < last; begin += chunk_) sort_chunk(begin, least(chunk_, last - begin));
  }

 private:
  static constexpr int32_t kNumParts = 9;  // lists of a chunk; two of them have two words an entry

  __aicore__ inline int32_t num_ranks() const { return route_.num_experts; }

  __aicore__ inline void read_chunk(int32_t begin, int32_t count) {
    drain_pipes();
    on_.read(ranks_, on_.word(experts_.chosen + begin), count);
    on_.read(places_, on_.word(experts_.place + begin), count);
    on_.unit.wait_for_loads();
    for (int32_t rank = 0; rank < num_ranks(); ++rank) newest_.SetValue(rank, -1);
  }

  // Returns the rank of an entry's expert, or -1. Sets `firsts` to the rank if no earlier entry of the token goes there.
  __aicore__ inline int32_t look_at(int32_t begin, int32_t i) {
    const int32_t expert = ranks_.GetValue(i), rank = expert < 0 ? -1 : expert / num_local_;
    const int32_t token = (begin + i) / route_.top_k;
    const bool is_first = rank >= 0 && newest_.GetValue(rank) != token;
    if (is_first) newest_.SetValue(rank, token);
    firsts_.SetValue(i, is_first ? rank : -1);
    return rank;
  }

  // Finds where each rank's rows, and the lists of their experts, begin. The first core writes these starts and the end
  // of the last list for all cores.
  __aicore__ inline void find_starts() {
    int32_t row = 0, fan = 0;
    for (int32_t rank = 0; rank < tables_.width; ++rank) {
      const int32_t rows = rows_.GetValue(rank), fans = fans_.GetValue(rank);
      rows_.SetValue(rank, row);
      next_row_.SetValue(rank, next_row_.GetValue(rank) + row);
      next_start_.SetValue(rank, next_row_.GetValue(rank));
      next_fan_.SetValue(rank, next_fan_.GetValue(rank) + fan);
      row += rows;
      fan += fans;
    }
    if (on_.core != 0) return;
    work_.SetValue(0, fan);
    on_.publish();
    on_.write(on_.word(tables_.sent + on_.rank.args.rank * tables_.width), rows_, tables_.width);
    on_.write(on_.word(tables_.fan_start + row), work_, 1);
    drain_pipes();
  }

  __aicore__ inline void sort_chunk(int32_t begin, int32_t count) {
    read_chunk(begin, count);
    for (int32_t rank = 0; rank < num_ranks(); ++rank) fans_.SetValue(rank, next_fan_.GetValue(rank));
    for (int32_t i = 0; i < count; ++i) {
      const int32_t expert = ranks_.GetValue(i), rank = look_at(begin, i);
      entries_.SetValue(i, begin + i);
      records_.SetValue(2 * i, expert - rank * num_local_);
      records_.SetValue(2 * i + 1, places_.GetValue(i));
      ranks_.SetValue(i, rank);
      if (rank < 0) continue;
      starts_.SetValue(i, fans_.GetValue(rank));
      fans_.SetValue(rank, fans_.GetValue(rank) + 1);
    }
    on_.append(firsts_, entries_, 1, count, num_ranks(), next_row_, tables_.entries, work_, staged_);
    on_.write(on_.word(tables_.chosen + begin), firsts_, count);
    on_.append(firsts_, starts_, 1, count, num_ranks(), next_start_, tables_.fan_start, work_, staged_);
    on_.append(ranks_, records_, 2, count, num_ranks(), next_fan_, tables_.fans, work_, staged_);
  }

  PrologueUnit& on_;
  const RouteWords route_;
  const RouteTables tables_, experts_;
  const int32_t num_local_;
  int32_t chunk_ = 0;
  Words rows_, fans_, next_row_, next_start_, next_fan_, newest_, work_;  // by rank
  Words ranks_, places_, firsts_, entries_, starts_, records_, staged_;  // of a chunk
};

}  // namespace hpmoe

// Sorts the entries of a route to stops, which are ranks or relays: for each stop that a token goes to, the first of its
// kept entries there. Lists for each of them the experts that the token has on the rank, or the choices whose rows come
// back to the relay. Also lists, beside the entries of the route that relays forward, the relay's row of each entry. Runs
// after the experts' route is sorted.
#pragma once

#include "prologue_unit.h"

namespace hpmoe {

class StopSort {
 public:
  __aicore__ inline StopSort(PrologueUnit& on, int32_t number)
      : on_(on),
        route_(on.rank.image.route(number)),
        tables_(on.rank.image.tables(number, on.rank.num_aiv)),
        forwards_(on.rank.image.passed_on(number) >= 0),
        passed_on_(on.rank.image.route(forwards_ ? on.rank.image.passed_on(number) : number)),
        experts_(on.rank.image.tables(route_.of, on.rank.num_aiv)),
        num_local_(on.rank.image.route(route_.of).num_local_experts),
        is_once_(forwards_ && passed_on_.of >= 0) {
    const bool has_lists_of_experts = forwards_ && !is_once_;
    num_lists_ = has_lists_of_experts ? num_ranks() * num_local_ : num_ranks();
    UbWords ub(on);
    Words* const by_rank[] = {&rows_, &fans_, &at_row_, &next_row_, &next_start_, &next_fan_, &newest_, &newest_of_rank_};
    for (Words* table : by_rank) *table = ub.take(tables_.width);
    Words* const by_list[] = {&starts_, &next_, &work_};
    for (Words* table : by_list) *table = ub.take(has_lists_of_experts ? experts_.width : tables_.width);
    const int32_t part = ub.capacity(forwards_ ? kNumParts : kNumParts - 2, PrologueUnit::slack(num_lists_));
    Words* const of_chunk[] = {&chosen_, &places_, &firsts_, &entries_, &fan_starts_, &lists_, &values_};
    for (int32_t i = 0; i < (forwards_ ? 7 : 5); ++i) *of_chunk[i] = ub.take(part);
    records_ = ub.take(2 * part);
    staged_ = ub.take(2 * part);
    chunk_ = part / route_.top_k * route_.top_k;
  }

  // Counts the rows that this core's tokens send to each stop, the rows that are listed there, and the rows that relays
  // forward once to each rank.
  __aicore__ inline void count() {
    drain_pipes();
    on_.clear(rows_, tables_.width);
    on_.clear(fans_, tables_.width);
    on_.clear(next_row_, tables_.width);
    int32_t first, last;
    on_.share(route_, &first, &last);
    for (int32_t begin = first; begin < last; begin += chunk_) {
      const int32_t count = least(chunk_, last - begin);
      read_chunk(begin, count);
      for (int32_t i = 0; i < count; ++i) {
        const Hop hop = look_at(begin, i);
        if (hop.crosses) add(rows_, hop.stop, 1);
        if (hop.is_listed) add(fans_, hop.stop, 1);
        if (hop.is_listed && is_once_) add(next_row_, hop.rank, 1);
      }
    }
    on_.publish();
    write_shares(tables_.shares, rows_);
    write_shares(tables_.fan_shares, fans_);
    if (is_once_) write_shares(tables_.rank_shares, next_row_);
  }

  __aicore__ inline void sort() {
    if (is_once_) {
      on_.sum_shares(tables_.rank_shares, tables_.width, starts_, next_, staged_, 2 * chunk_);
      add_starts(starts_, next_);
    } else if (forwards_) {
      drain_pipes();
      on_.read(starts_, on_.word(experts_.sent + on_.rank.args.rank * experts_.width), experts_.width);
    }
    on_.sum_shares(tables_.shares, tables_.width, rows_, next_row_, staged_, 2 * chunk_);
    on_.sum_shares(tables_.fan_shares, tables_.width, fans_, next_fan_, staged_, 2 * chunk_);
    find_starts();
    int32_t first, last;
    on_.share(route_, &first, &last);
    for (int32_t begin = first; begin < last; begin += chunk_) sort_chunk(begin, least(chunk_, last - begin));
  }

 private:
  // Lists of a chunk; two of them have two words an entry, and the last two are of relays.
  static constexpr int32_t kNumParts = 11;

  // The route of a choice: the rank that its relay forwards its token to, and the stop, or -1; true if a row is sent to
  // the stop for this choice, and true if an expert there has the row, or a row comes back to the relay for it.
  struct Hop {
    int32_t rank, stop;
    bool crosses, is_listed;
  };

  __aicore__ inline int32_t num_ranks() const { return route_.num_experts; }
  __aicore__ inline static void add(const Words& words, int32_t i, int32_t amount) {
    words.SetValue(i, words.GetValue(i) + amount);
  }
  __aicore__ inline void write_shares(int32_t table, const Words& counts) {
    on_.write(on_.word(table + on_.core * tables_.width), counts, tables_.width);
  }

  __aicore__ inline void read_chunk(int32_t begin, int32_t count) {
    drain_pipes();
    on_.read(chosen_, on_.word(experts_.chosen + begin), count);
    on_.read(places_, on_.word(experts_.place + begin), count);
    on_.unit.wait_for_loads();
    for (int32_t rank = 0; rank < num_ranks(); ++rank) {
      newest_.SetValue(rank, -1);
      newest_of_rank_.SetValue(rank, -1);
    }
  }

  __aicore__ inline Hop look_at(int32_t begin, int32_t i) {
    const int32_t expert = chosen_.GetValue(i), token = (begin + i) / route_.top_k;
    if (expert < 0) return {-1, -1, false, false};
    const int32_t dest = expert / num_local_, me = on_.rank.args.rank;
    const int32_t rank = forwards_ ? on_.rank.image.stop(passed_on_, me, dest) : dest;
    const int32_t stop = forwards_ ? on_.rank.image.stop(route_, me, dest) : dest;
    const Hop hop{rank, stop, newest_.GetValue(stop) != token, !is_once_ || newest_of_rank_.GetValue(rank) != token};
    newest_.SetValue(stop, token);
    newest_of_rank_.SetValue(rank, token);
    return hop;
  }

  // Replaces the counts of each rank by their starts; adds the starts to `next`, where this core's entries begin.
  __aicore__ inline void add_starts(const Words& counts, const Words& next) {
    int32_t start = 0;
    for (int32_t rank = 0; rank < tables_.width; ++rank) {
      const int32_t count = counts.GetValue(rank);
      counts.SetValue(rank, start);
      add(next, rank, start);
      start += count;
    }
  }
  // Finds the starts. The first core writes where each stop's rows begin, and the end of the last list, for all cores.
  __aicore__ inline void find_starts() {
    add_starts(rows_, next_row_);
    add_starts(fans_, next_fan_);
    for (int32_t rank = 0; rank < tables_.width; ++rank) next_start_.SetValue(rank, next_row_.GetValue(rank));
    if (on_.core != 0) return;
    const int32_t end = tables_.width - 1;
    work_.SetValue(0, fans_.GetValue(end));
    on_.publish();
    on_.write(on_.word(tables_.sent + on_.rank.args.rank * tables_.width), rows_, tables_.width);
    on_.write(on_.word(tables_.fan_start + rows_.GetValue(end)), work_, 1);
    drain_pipes();
  }

  __aicore__ inline void sort_chunk(int32_t begin, int32_t count) {
    read_chunk(begin, count);
    for (int32_t rank = 0; rank < num_ranks(); ++rank) {
      fans_.SetValue(rank, next_fan_.GetValue(rank));
      at_row_.SetValue(rank, next_row_.GetValue(rank));
    }
    for (int32_t i = 0; i < count; ++i) {
      const int32_t choice = (begin + i) % route_.top_k, expert = chosen_.GetValue(i);
      const Hop hop = look_at(begin, i);
      cross(i, begin, hop.crosses ? hop.stop : -1);
      records_.SetValue(2 * i, forwards_ ? 0 : expert - hop.stop * num_local_);
      records_.SetValue(2 * i + 1, forwards_ ? choice : places_.GetValue(i));
      chosen_.SetValue(i, hop.is_listed ? hop.stop : -1);
      if (hop.is_listed) add(fans_, hop.stop, 1);
      if (!forwards_) continue;
      lists_.SetValue(i, !hop.is_listed ? -1 : is_once_ ? hop.rank : expert);
      if (hop.stop < 0) continue;
      const int32_t row = at_row_.GetValue(hop.stop) - 1 - rows_.GetValue(hop.stop);
      values_.SetValue(i, row * route_.top_k + choice);
    }
    on_.append(firsts_, entries_, 1, count, num_ranks(), next_row_, tables_.entries, work_, staged_);
    on_.write(on_.word(tables_.chosen + begin), firsts_, count);
    on_.append(firsts_, fan_starts_, 1, count, num_ranks(), next_start_, tables_.fan_start, work_, staged_);
    on_.append(chosen_, records_, 2, count, num_ranks(), next_fan_, tables_.fans, work_, staged_);
    if (forwards_) list_relayed(count);
  }
  // Notes that a row is sent to a stop for the i-th entry from `first` on (-1: no row); its experts or choices are listed
  // from here on.
  __aicore__ inline void cross(int32_t i, int32_t first, int32_t stop) {
    entries_.SetValue(i, first + i);
    firsts_.SetValue(i, stop);
    if (stop < 0) return;
    fan_starts_.SetValue(i, fans_.GetValue(stop));
    add(at_row_, stop, 1);
  }
  // Lists the relay's row of each entry of a chunk that relays forward.
  __aicore__ inline void list_relayed(int32_t count) {
    for (int32_t i = count - 1; i >= 0 && !is_once_; --i) {
      const int32_t list = lists_.GetValue(i);
      if (list >= 0) next_.SetValue(list, starts_.GetValue(list) + places_.GetValue(i));
    }
    on_.append(lists_, values_, 1, count, num_lists_, next_, tables_.relayed, work_, staged_);
  }

  PrologueUnit& on_;
  const RouteWords route_;
  const RouteTables tables_;
  const bool forwards_;  // the stops are relays
  const RouteWords passed_on_;  // the route whose rows relays forward
  const RouteTables experts_;
  const int32_t num_local_;
  const bool is_once_;  // relays forward a row once to a rank, not to each of its experts
  int32_t num_lists_ = 0, chunk_ = 0;
  Words rows_, fans_, at_row_, next_row_, next_start_, next_fan_, newest_, newest_of_rank_;  // by rank
  Words starts_, next_, work_;  // by rank or local expert
  Words chosen_, places_, firsts_, entries_, fan_starts_, lists_, values_, records_, staged_;  // of a chunk
};

}  // namespace hpmoe

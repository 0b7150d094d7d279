// Sorts a rank's entries by their experts, where no expert has copies or shards and none drops entries: what names an expert
// is gathered by vector instructions. The experts are shared out among the cores; each looks at all entries, and finds those
// of its own in order.
//
// What is gathered stays in UB until all cores have counted, where there is room for it; else it is gathered again.
#pragma once

#include "prologue_unit.h"

namespace hpmoe {

// Whether a route is sorted so: nothing asks for an entry's place among those of its expert.
__aicore__ inline bool is_gathered(const RouteWords& route, int32_t ep_size) {
  const auto policy = static_cast<DropPolicy>(route.drop_policy);
  return route.once_of < 0 && route.tp_size == 1 && !has_copies(route, ep_size) &&
         (policy == DropPolicy::NONE || policy == DropPolicy::ERROR);
}

// What UB has of a route's entries from counting to sorting.
struct Gathered {
  int32_t num_pieces, num_words;
  bool is_kept;
};

class GatherSort {
 public:
  // Nothing else uses UB between counting and sorting where a route is alone.
  __aicore__ inline GatherSort(PrologueUnit& on, int32_t number, Gathered& gathered)
      : on_(on),
        number_(number),
        route_(on.rank.image.route(number)),
        tables_(on.rank.image.tables(number, on.rank.num_aiv)),
        num_entries_(on.rank.args.num_tokens * route_.top_k),
        ids_address_(on.buffer(route_.ids_buffer)),
        gathered_(gathered) {
    const int32_t num_lists = route_.num_experts + 1, part = (num_lists + on.rank.num_aiv - 1) / on.rank.num_aiv;
    first_ = least(on.core * part, num_lists);
    last_ = least(first_ + part, num_lists);
    UbWords ub(on);
    for (Words& ids : ids_) ids = ub.take(kAtOnce);
    numbers_ = ub.take(kAtOnce);
    mask_ = ub.take(kAtOnce / 32);
    own_ = ub.take(tables_.width);
    starts_ = ub.take(tables_.width);
    pieces_ = ub.take(kMaxPieces);
    room_ = ub.room(1, 0);
    staged_ = ub.take(room_);
  }

  // Entries of each of this core's experts, for all cores; those of no expert are counted behind the last.
  __aicore__ inline void count(bool is_alone) {
    AscendC::PipeBarrier<PIPE_ALL>();
    gathered_ = {0, 0, is_alone};
    for (int32_t e = first_; e < last_; ++e) set_own(e, 0);
    gather_all(false);
    if (first_ == last_) return;
    for (int32_t e = first_; e < last_; ++e) own_.SetValue(e - first_, own(e));
    on_.publish();
    on_.write(on_.word(tables_.shares + first_), own_, last_ - first_);
  }

  // Lists this core's entries, once all have counted.
  __aicore__ inline Code sort() {
    const Code code = find_starts();
    if (code != Code::OK) return code;
    for (int32_t e = first_; e < last_; ++e) set_own(e, starts_.GetValue(e));
    if (gathered_.is_kept) {
      list_kept();
    } else {
      gather_all(true);
    }
    if (!keeps_all()) note_chosen();
    return Code::OK;
  }

  // Where the entries of each expert begin, and whether all entries have one; once they have been found.
  __aicore__ inline const Words& starts() const { return starts_; }
  __aicore__ inline bool keeps_all() const { return starts_.GetValue(route_.num_experts) == num_entries_; }

  // INDEX_OUT_OF_RANGE where this core's share of the tokens has an id of no expert; OVER_CAPACITY, which the first core
  // says.
  __aicore__ inline Code find_starts() {
    AscendC::PipeBarrier<PIPE_ALL>();
    on_.read(starts_, on_.word(tables_.shares), route_.num_experts + 1);
    on_.unit.wait_for_loads();
    const bool is_limited = static_cast<DropPolicy>(route_.drop_policy) == DropPolicy::ERROR;
    const int32_t capacity = is_limited ? on_.capacity(number_) : num_entries_;
    int32_t start = 0, fullest = -1, most_rows = capacity;
    for (int32_t e = 0; e < route_.num_experts; ++e) {
      const int32_t rows = starts_.GetValue(e);
      if (rows > most_rows) {
        most_rows = rows;
        fullest = e;
      }
      starts_.SetValue(e, start);
      start += rows;
    }
    const int32_t num_absent = starts_.GetValue(route_.num_experts);
    starts_.SetValue(route_.num_experts, start);
    on_.publish();
    if (start + num_absent != num_entries_) return find_wrong_id();
    if (fullest < 0 || on_.core != 0) return Code::OK;
    on_.status.wait = fullest;
    on_.status.value = most_rows;
    on_.status.threshold = capacity;
    return Code::OVER_CAPACITY;
  }

 private:
  static constexpr int32_t kAtOnce = 2048, kMaxPieces = 512, kRepeat = 64, kFew = 8, kAhead = VectorUnit::kNumMarks;
  static_assert(kAtOnce % kRepeat == 0, "whole steps of a comparison");

  __aicore__ inline void read_ids(int32_t i, int32_t begin, int32_t count) {
    on_.read(ids_[i], ids_address_ + static_cast<uint64_t>(begin) * 4, count);
  }
  // Of all entries those from a chunk's first on, while there are any.
  __aicore__ inline void read_ahead(int32_t chunk) {
    if (chunk * kAtOnce >= num_entries_) return;
    read_ids(chunk % kAhead, chunk * kAtOnce, least(kAtOnce, num_entries_ - chunk * kAtOnce));
    on_.unit.mark_load(chunk % kAhead);
  }

  // The entries of each of this core's experts, as many at a time as there is room to look at: they are counted, or listed.
  __aicore__ inline void gather_all(bool lists) {
    if (first_ == last_ || num_entries_ == 0) return;
    for (int32_t chunk = 0; chunk < kAhead; ++chunk) read_ahead(chunk);
    AscendC::CreateVecIndex(numbers_, 0, kAtOnce);
    for (int32_t chunk = 0; chunk * kAtOnce < num_entries_; ++chunk) {
      const int32_t num_ids = least(kAtOnce, num_entries_ - chunk * kAtOnce);
      on_.unit.wait_for_load(chunk % kAhead);
      for (int32_t e = first_; e < last_; ++e) take(e, ids_[chunk % kAhead], num_ids, lists);
      AscendC::Adds(numbers_, numbers_, kAtOnce, kAtOnce);
      on_.unit.wait_for_results();  // nothing looks at these ids any more
      read_ahead(chunk + kAhead);
    }
  }
  __aicore__ inline void take(int32_t e, const Words& ids, int32_t num_ids, bool lists) {
    const int32_t place = gathered_.is_kept ? gathered_.num_words : 0, count = gather(staged_[place], e, ids, num_ids);
    if (lists) {
      on_.unit.wait_for_results();
      list(e, 0, count);
      AscendC::PipeBarrier<PIPE_ALL>();
    } else {
      add_own(e, count);
      if (gathered_.is_kept) keep(e, count);
    }
  }
  __aicore__ inline int32_t gather(const Words& to, int32_t e, const Words& ids, int32_t num_ids) {
    uint64_t found = 0;
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Compares(mask_.ReinterpretCast<uint8_t>(), ids, e < route_.num_experts ? e : kAbsent, AscendC::CMPMODE::EQ,
                      static_cast<uint32_t>(round_up(num_ids, kRepeat)));
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::GatherMask(to, numbers_, mask_.ReinterpretCast<uint32_t>(), true, static_cast<uint32_t>(num_ids), {1, 1, 8, 0},
                        found);
    return static_cast<int32_t>(found);
  }

  // A number of each of this core's experts: the first few need no word of UB.
  __aicore__ inline int32_t own(int32_t e) const { return e - first_ < kFew ? few_[e - first_] : own_.GetValue(e - first_); }
  __aicore__ inline void set_own(int32_t e, int32_t value) {
    if (e - first_ < kFew) {
      few_[e - first_] = value;
    } else {
      own_.SetValue(e - first_, value);
    }
  }
  __aicore__ inline void add_own(int32_t e, int32_t count) { set_own(e, own(e) + count); }

  // What is gathered next follows; where it might not fit, nothing is kept.
  __aicore__ inline void keep(int32_t e, int32_t count) {
    pieces_.SetValue(gathered_.num_pieces++, count);
    gathered_.num_words += words_of(e, count);
    gathered_.is_kept = gathered_.num_pieces < kMaxPieces && gathered_.num_words + kAtOnce <= room_;
  }
  __aicore__ inline int32_t words_of(int32_t e, int32_t count) const {
    return e < route_.num_experts ? round_up(count, kBlockBytes / 4) : 0;
  }
  __aicore__ inline void list_kept() {
    for (int32_t i = 0, e = first_, from = 0; i < gathered_.num_pieces; ++i, e = e + 1 < last_ ? e + 1 : first_) {
      const int32_t count = pieces_.GetValue(i);
      list(e, from, count);
      from += words_of(e, count);
    }
  }
  __aicore__ inline void list(int32_t e, int32_t from, int32_t count) {
    if (count == 0 || e == route_.num_experts) return;
    on_.write(on_.word(tables_.entries + own(e)), staged_[from], count);
    add_own(e, count);
  }

  // Each entry's local expert is its id, as there are no copies.
  __aicore__ inline void note_chosen() {
    int32_t first, last;
    on_.share(route_, &first, &last);
    for (int32_t begin = first; begin < last; begin += kAtOnce) {
      const int32_t count = read_own_ids(begin, last);
      AscendC::PipeBarrier<PIPE_ALL>();
      on_.write(on_.word(tables_.chosen + begin), ids_[0], count);
    }
  }
  __aicore__ inline Code find_wrong_id() {
    int32_t first, last;
    on_.share(route_, &first, &last);
    for (int32_t begin = first; begin < last; begin += kAtOnce) {
      const int32_t count = read_own_ids(begin, last);
      for (int32_t i = 0; i < count; ++i) {
        const int32_t id = ids_[0].GetValue(i);
        if (id == kAbsent || (id >= 0 && id < route_.num_experts)) continue;
        on_.status.value = id;
        on_.status.threshold = route_.num_experts;
        return Code::INDEX_OUT_OF_RANGE;
      }
    }
    return Code::OK;
  }
  __aicore__ inline int32_t read_own_ids(int32_t begin, int32_t last) {
    const int32_t count = least(kAtOnce, last - begin);
    AscendC::PipeBarrier<PIPE_ALL>();
    read_ids(0, begin, count);
    on_.unit.wait_for_loads();
    return count;
  }

  PrologueUnit& on_;
  const int32_t number_;
  const RouteWords route_;
  const RouteTables tables_;
  const int32_t num_entries_;
  const uint64_t ids_address_;
  Gathered& gathered_;
  int32_t few_[kFew];
  int32_t first_, last_, room_;  // this core's lists: of experts, and of no expert behind the last
  Words ids_[kAhead], numbers_, mask_, own_, starts_, pieces_, staged_;
};

}  // namespace hpmoe

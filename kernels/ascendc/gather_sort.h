// Sorts a rank's entries by expert with vector instructions, for routes without replicas and shards. Drops entries over
// capacity, the last ones first.
//
// Entries are divided into consecutive groups and experts into blocks; each core takes the entries of one group for one
// block. It selects the block's entries from the group, then each expert's entries from these. If entries can be dropped
// there is one group: the core of an expert finds the last kept entry, and other cores compare entries with it.
//
// The selected entries stay in UB between counting and sorting if they fit; otherwise they are selected again.
#pragma once

#include "running_sums.h"

namespace hpmoe {

// Returns true if a route is sorted by GatherSort: no step needs an entry's place among those of its expert.
__aicore__ inline bool is_gathered(const RouteWords& route, int32_t ep_size) {
  return route.of < 0 && route.tp_size == 1 && !has_copies(route, ep_size) && !keeps_heaviest(route);
}

class GatherSort {
 public:
  // is_kept: set if UB keeps a route's entries from counting to sorting.
  __aicore__ inline GatherSort(PrologueUnit& on, int32_t number, bool& is_kept)
      : on_(on),
        number_(number),
        route_(on.rank.image.route(number)),
        tables_(on.rank.image.tables(number, on.rank.num_aiv)),
        num_experts_(route_.num_experts),
        num_entries_(on.rank.args.num_tokens * route_.top_k),
        capacity_(policy() == DropPolicy::NONE ? num_entries_ : on.capacity(number)),
        ids_address_(on.buffer(route_.ids_buffer)),
        is_kept_(is_kept) {
    UbWords ub(on);
    numbers_ = ub.take(kAtOnce);
    blocks_ = ub.take(kAtOnce);
    mask_ = ub.take(kAtOnce / 32);
    Words* const by_expert[] = {&totals_, &starts_, &next_};
    for (Words* table : by_expert) *table = ub.take(RunningSums::kMostSums);
    Words* const of_block[] = {&own_, &lasts_, &dropped_};
    for (Words* table : of_block) *table = ub.take(kMostLists);
    found_ids_ = ub.take(kMostFound);
    found_ = ub.take(kMostFound);
    staged_ = ub.take(kMostFound + kMostLists * kBlockBytes / 4);
    share_out();
  }

  // Counts the entries of each of this core's experts for all cores; masked entries are counted after the last expert.
  __aicore__ inline void count(bool is_alone) {
    is_kept_ = is_alone && num_parts() <= on_.rank.num_aiv;
    for (int32_t part = on_.core; part < num_parts(); part += on_.rank.num_aiv) {
      drain_pipes();
      take_part(part);
      AscendC::Duplicate(own_, 0, kMostLists);
      AscendC::Duplicate(lasts_, capacity_ > 0 ? num_entries_ : -1, kMostLists);
      gather(false);
      leave_counts();
    }
  }

  // Lists this core's entries, after all cores have counted.
  __aicore__ inline Code sort() {
    Code code = find_starts();
    for (int32_t part = on_.core; part < num_parts() && code == Code::OK; part += on_.rank.num_aiv) {
      take_part(part);
      code = check_own_capacity();
      if (code == Code::OK) is_kept_ ? list_found() : gather(true);
    }
    if (code == Code::OK && !keeps_all()) note_chosen();
    return code;
  }

  // starts() is the first entry of each expert, valid after find_starts(). keeps_all() is true if no entry is masked or
  // dropped.
  __aicore__ inline const Words& starts() const { return starts_; }
  __aicore__ inline bool keeps_all() const { return starts_.GetValue(num_experts_) == num_entries_; }

  // Finds the starts. Returns INDEX_OUT_OF_RANGE if this core's share of the tokens has an invalid id.
  __aicore__ inline Code find_starts() {
    const Words counts = found_ids_[RunningSums::kWords];
    RunningSums sums(found_ids_, num_experts_);
    drain_pipes();
    on_.read(counts, on_.word(tables_.shares), num_groups_ * tables_.width);
    sums.init();
    AscendC::Duplicate(totals_, 0, tables_.width);
    on_.unit.wait_for_loads();
    for (int32_t group = 0; group < num_groups_; ++group) {
      AscendC::PipeBarrier<PIPE_V>();
      if (group == on_.core % num_groups_) AscendC::Adds(next_, totals_, 0, tables_.width);
      AscendC::PipeBarrier<PIPE_V>();
      AscendC::Add(totals_, totals_, counts[group * tables_.width], tables_.width);
    }
    AscendC::PipeBarrier<PIPE_V>();
    AscendC::Adds(sums.list(), totals_, 0, tables_.width);
    Words starts = sums.find();
    on_.unit.wait_for_results();
    if (starts.GetValue(num_experts_) + totals_.GetValue(num_experts_) != num_entries_) return find_wrong_id();
    if (drops()) {
      AscendC::Mins(sums.list(), totals_, capacity_, tables_.width);
      starts = sums.find();
    }
    AscendC::Adds(starts_, starts, 0, tables_.width);
    AscendC::Add(next_, next_, starts, tables_.width);
    on_.unit.wait_for_results();
    return Code::OK;
  }

 private:
  static constexpr int32_t kAtOnce = 2048, kRepeat = 64, kAhead = VectorUnit::kNumMarks, kMostShift = 5, kWantedGroups = 4,
                           kMostLists = 1 << kMostShift, kMostFound = 4224;
  static_assert(kAtOnce % kRepeat == 0 && kMostFound % kRepeat == 0, "whole steps of a comparison");
  static_assert(2 * kAtOnce + kAtOnce / 32 + 3 * RunningSums::kMostSums + 3 * kMostFound +
                        kMostLists * (3 + kBlockBytes / 4) <=
                    PrologueUnit::kWords,
                "all lists fit UB");
  static_assert(kAhead * kAtOnce * sizeof(int32_t) <= 2 * kMaxInputs * kPieceBytes, "ids fit the buffers of inputs");
  static constexpr int32_t kMostCounts = 2 * kMostFound - RunningSums::kWords;

  __aicore__ inline DropPolicy policy() const { return static_cast<DropPolicy>(route_.drop_policy); }
  __aicore__ inline bool drops() const { return policy() == DropPolicy::POSITION; }

  // Chooses blocks of the fewest experts for which each core has one block, or none for masked entries. If nothing is
  // dropped, blocks are larger, so that groups are small.
  __aicore__ inline void share_out() {
    shift_ = drops() ? 0 : kMostShift - 1;
    const int32_t wanted = drops() ? 1 : kWantedGroups;
    while (shift_ < kMostShift && on_.rank.num_aiv / num_blocks() < wanted) ++shift_;
    const int32_t most_groups = least(on_.rank.num_aiv / num_blocks(), kMostCounts / tables_.width);
    num_groups_ = drops() ? 1 : most(most_groups, 1);
  }
  __aicore__ inline int32_t num_blocks() const { return ((num_experts_ - 1) >> shift_) + 2; }
  __aicore__ inline int32_t num_parts() const { return num_groups_ * num_blocks(); }
  __aicore__ inline void take_part(int32_t part) {
    const int32_t of_group = round_up((num_entries_ + num_groups_ - 1) / num_groups_, kRepeat);
    group_ = part % num_groups_;
    begin_ = least(group_ * of_group, num_entries_);
    end_ = least(begin_ + of_group, num_entries_);
    const bool is_last = part / num_groups_ + 1 == num_blocks();
    block_ = is_last ? kAbsent : part / num_groups_;
    first_ = is_last ? num_experts_ : block_ << shift_;
    num_lists_ = is_last ? 1 : least(1 << shift_, num_experts_ - first_);
  }

  // Processes the entries of this part, as many at a time as fit: counts them or lists them.
  __aicore__ inline void gather(bool lists) {
    Bytes held[] = {on_.unit.inputs.AllocTensor<uint8_t>(), on_.unit.inputs.AllocTensor<uint8_t>()};
    for (int32_t i = 0; i < kAhead; ++i) ids_[i] = held[i % 2].ReinterpretCast<int32_t>()[i / 2 * kAtOnce];
    for (int32_t chunk = 0; chunk < kAhead; ++chunk) read_ahead(chunk);
    AscendC::CreateVecIndex(numbers_, begin_, kAtOnce);
    num_found_ = num_splits_ = 0;
    for (int32_t chunk = 0; begin_ + chunk * kAtOnce < end_; ++chunk) {
      const int32_t count = least(kAtOnce, end_ - begin_ - chunk * kAtOnce);
      if (num_found_ + count > kMostFound) split(lists);
      on_.unit.wait_for_load(chunk % kAhead);
      find(ids_[chunk % kAhead], count);
      AscendC::Adds(numbers_, numbers_, kAtOnce, kAtOnce);
      on_.unit.wait_for_results();  // the ids are no longer in use
      read_ahead(chunk + kAhead);
    }
    if (num_found_ > 0) split(lists);
    for (Bytes& buffer : held) {
      on_.unit.inputs.EnQue(buffer);
      buffer = on_.unit.inputs.DeQue<uint8_t>();
      on_.unit.inputs.FreeTensor(buffer);
    }
  }
  __aicore__ inline void read_ahead(int32_t chunk) {
    const int32_t begin = begin_ + chunk * kAtOnce;
    if (begin >= end_) return;
    read_ids(ids_[chunk % kAhead], begin, least(kAtOnce, end_ - begin));
    on_.unit.mark_load(chunk % kAhead);
  }
  __aicore__ inline void read_ids(const Words& to, int32_t begin, int32_t count) {
    on_.read(to, ids_address_ + static_cast<uint64_t>(begin) * sizeof(int32_t), count);
  }

  // Selects the entries of this block. Padding of the last block of UB has no expert.
  __aicore__ inline void find(const Words& ids, int32_t count) {
    AscendC::PipeBarrier<PIPE_V>();
    in_order::ShiftRight(blocks_, ids, block_ == kAbsent ? 0 : shift_, round_up(count, kRepeat));
    make_mask(blocks_, block_, count);
    const int32_t found = pick(found_ids_[num_found_], ids, count);
    (void)pick(found_[num_found_], numbers_, count);
    num_found_ += found;
    for (; num_found_ % (kBlockBytes / 4) != 0; ++num_found_) found_ids_.SetValue(num_found_, kNothing);
    on_.unit.release_to_vectors();
  }
  __aicore__ inline void make_mask(const Words& words, int32_t value, int32_t count) {
    in_order::Compares(mask_.ReinterpretCast<uint8_t>(), words, value, AscendC::CMPMODE::EQ,
                       static_cast<uint32_t>(round_up(count, kRepeat)));
  }
  __aicore__ inline int32_t pick(const Words& to, const Words& from, int32_t count) {
    uint64_t found = 0;
    AscendC::GatherMask(to, from, mask_.ReinterpretCast<uint32_t>(), true, static_cast<uint32_t>(count), {1, 1, 8, 0},
                        found);
    return static_cast<int32_t>(found);
  }

  // Splits the selected entries by expert; each expert's entries begin at a block of UB.
  __aicore__ inline void split(bool lists) {
    is_kept_ = is_kept_ && ++num_splits_ == 1;
    if (lists) drain_pipes();
    for (int32_t i = 0, place = 0; i < num_lists_; ++i) {
      AscendC::PipeBarrier<PIPE_V>();
      make_mask(found_ids_, block_ == kAbsent ? kAbsent : first_ + i, num_found_);
      const int32_t count = pick(staged_[place], found_, num_found_);
      on_.unit.wait_for_results();
      lists ? list(i, place, count) : add(i, place, count);
      place += round_up(count, kBlockBytes / 4);
    }
    num_found_ = 0;
  }

  __aicore__ inline void add(int32_t i, int32_t place, int32_t count) {
    if (count == 0) return;
    const int32_t before = own_.GetValue(i);
    own_.SetValue(i, before + count);
    if (drops() && before < capacity_ && before + count >= capacity_)
      lasts_.SetValue(i, staged_.GetValue(place + capacity_ - before - 1));
  }
  __aicore__ inline void leave_counts() {
    on_.unit.release_to_vectors();
    AscendC::PipeBarrier<PIPE_V>();
    in_order::Adds(dropped_, own_, -capacity_, kMostLists);
    AscendC::Maxs(dropped_, dropped_, 0, kMostLists);
    on_.publish();
    on_.write(on_.word(tables_.shares + group_ * tables_.width + first_), own_, num_lists_);
    if (!drops() || block_ == kAbsent) return;
    on_.write(on_.word(tables_.last + first_), lasts_, num_lists_);
    on_.write(on_.word(tables_.dropped + first_), dropped_, num_lists_);
  }

  __aicore__ inline void list_found() {
    for (int32_t i = 0, place = 0; i < num_lists_; ++i) {
      const int32_t count = own_.GetValue(i);
      list(i, place, count);
      place += round_up(count, kBlockBytes / 4);
    }
  }
  __aicore__ inline void list(int32_t i, int32_t place, int32_t count) {
    if (block_ == kAbsent) return;
    const int32_t next = next_.GetValue(first_ + i);
    const int32_t kept = drops() ? least(count, starts_.GetValue(first_ + i + 1) - next) : count;
    if (kept <= 0) return;
    on_.write(on_.word(tables_.entries + next), staged_[place], kept);
    if (!is_kept_) next_.SetValue(first_ + i, next + kept);
  }

  // Returns OVER_CAPACITY if one of this core's experts is over capacity; reports the fullest expert of all.
  __aicore__ inline Code check_own_capacity() {
    if (policy() != DropPolicy::ERROR || block_ == kAbsent) return Code::OK;
    bool is_over = false;
    for (int32_t i = 0; i < num_lists_; ++i) is_over = is_over || totals_.GetValue(first_ + i) > capacity_;
    if (!is_over) return Code::OK;
    return check_capacity(CountsOf{totals_}, shards_of(route_, on_.rank.image.header().ep_size), capacity_, on_.status);
  }

  // Writes each entry's local expert, which is its id because there are no replicas; -1 if it is dropped.
  __aicore__ inline void note_chosen() {
    const Words lasts = found_ids_;
    if (drops()) {
      drain_pipes();
      on_.read(lasts, on_.word(tables_.last), num_experts_);
    }
    int32_t first, last;
    on_.share(route_, &first, &last);
    for (int32_t begin = first; begin < last; begin += kAtOnce) {
      const int32_t count = read_own_ids(begin, last);
      if (drops()) drop(lasts, begin, count);
      drain_pipes();
      on_.write(on_.word(tables_.chosen + begin), blocks_, count);
    }
  }
  // Sets all bits of the ids after the last entry that their expert keeps.
  __aicore__ inline void drop(const Words& lasts, int32_t begin, int32_t count) {
    const Words behind = found_;
    AscendC::CreateVecIndex(numbers_, begin, count);
    AscendC::Maxs(behind, blocks_, 0, count);
    AscendC::PipeBarrier<PIPE_V>();
    in_order::Muls(behind, behind, static_cast<int32_t>(sizeof(int32_t)), count);
    in_order::Gather(staged_, lasts, behind.ReinterpretCast<uint32_t>(), 0, count);
    in_order::Sub(behind, staged_, numbers_, count);
    in_order::ShiftRight(behind, behind, 31, count);
    AscendC::Or(blocks_.ReinterpretCast<uint16_t>(), blocks_.ReinterpretCast<uint16_t>(), behind.ReinterpretCast<uint16_t>(),
                2 * count);
  }

  __aicore__ inline Code find_wrong_id() {
    int32_t first, last;
    on_.share(route_, &first, &last);
    for (int32_t begin = first; begin < last; begin += kAtOnce) {
      const int32_t count = read_own_ids(begin, last);
      for (int32_t i = 0; i < count; ++i) {
        const int32_t id = blocks_.GetValue(i);
        if (id == kAbsent || (id >= 0 && id < num_experts_)) continue;
        on_.status.value = id;
        on_.status.threshold = num_experts_;
        return Code::INDEX_OUT_OF_RANGE;
      }
    }
    return Code::OK;
  }
  // Reads the ids of this core's share of the tokens.
  __aicore__ inline int32_t read_own_ids(int32_t begin, int32_t last) {
    const int32_t count = least(kAtOnce, last - begin);
    drain_pipes();
    read_ids(blocks_, begin, count);
    on_.unit.wait_for_loads();
    return count;
  }

  static constexpr int32_t kNothing = -2;  // neither an expert nor the id of a masked entry

  PrologueUnit& on_;
  const int32_t number_;
  const RouteWords route_;
  const RouteTables tables_;
  const int32_t num_experts_, num_entries_, capacity_;
  const uint64_t ids_address_;
  bool& is_kept_;
  int32_t shift_ = 0, num_groups_ = 1;  // of this route
  int32_t group_ = 0, begin_ = 0, end_ = 0, block_ = 0, first_ = 0, num_lists_ = 0;  // of a part
  int32_t num_found_ = 0, num_splits_ = 0;
  Words totals_, starts_, next_;  // by expert: entries of all groups, their starts, and the starts of this group
  Words own_, lasts_, dropped_;  // by expert of this part
  Words ids_[kAhead], numbers_, blocks_, mask_, found_ids_, found_, staged_;
};

}  // namespace hpmoe

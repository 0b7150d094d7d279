// Sorts a rank's entries by local expert, without masked entries, and drops entries over capacity. Each AIV counts and
// sorts the entries of its share of the tokens, with a barrier of all AIV between steps. tables.h explains the letters.
//
// If only the heaviest entries of an expert are kept, all entries are sorted first; heaviest.h finds the lightest kept
// entry; then the kept entries are counted and sorted again.
#pragma once

#include "core/shards.h"
#include "deciding_weights.h"

namespace hpmoe {

class EntrySort {
 public:
  // is_asked: a later step needs each entry's local expert and place even if no entry is dropped.
  __aicore__ inline EntrySort(PrologueUnit& on, int32_t number, bool is_asked)
      : on_(on),
        number_(number),
        route_(on.rank.image.route(number)),
        tables_(on.rank.image.tables(number, on.rank.num_aiv)),
        weights_(deciding_weights(on, route_)),
        shards_(shards_of(route_, on.rank.image.header().ep_size)),
        is_noted_(is_asked) {
    const int32_t ep_size = on.rank.image.header().ep_size;
    has_copies_ = has_copies(route_, ep_size);
    num_local_ = has_copies_ ? route_.num_local_experts * ep_size : route_.num_experts;
    UbWords ub(on);
    Words* const by_expert[] = {&all_, &before_, &low_, &high_, &next_, &work_, &newest_, &older_, &lightest_, &last_};
    for (Words* table : by_expert) *table = ub.take(tables_.width);
    const int32_t part = ub.capacity(kNumParts, PrologueUnit::slack(num_local_));
    Words* const of_chunk[] = {&ids_, &places_, &values_, &loaded_, &staged_};
    for (Words* list : of_chunk) *list = ub.take(part);
    chunk_ = part / route_.top_k * route_.top_k;
  }

  // Counts this core's entries for each expert; later only entries that are heavy enough. Reports the first invalid
  // entry.
  __aicore__ inline Code count(bool all) {
    drain_pipes();
    is_full_ = all;
    on_.clear(all_, tables_.width);
    if (!all) read_lightest();
    int32_t first, last;
    on_.share(route_, &first, &last);
    Code code = Code::OK;
    for (int32_t begin = first; begin < last && code != Code::INDEX_OUT_OF_RANGE; begin += chunk_) {
      const Code found = count_chunk(begin, least(chunk_, last - begin), code == Code::OK);
      if (found != Code::OK) code = found;
    }
    if (code != Code::OK) return code;
    on_.publish();
    on_.write(on_.word(tables_.shares + on_.core * tables_.width), all_, tables_.width);
    return Code::OK;
  }

  // Sorts this core's entries: all entries by expert, or the kept ones by local expert.
  __aicore__ inline Code sort(bool all) {
    is_full_ = all;
    on_.sum_shares(tables_.shares, tables_.width, all_, before_, staged_, chunk_ + PrologueUnit::slack(num_local_));
    const Code code = on_.core == 0 ? look_at_capacity() : Code::OK;
    if (code != Code::OK) return code;
    find_places();
    if (!all && keeps_heaviest(route_)) read_lightest();
    int32_t first, last;
    on_.share(route_, &first, &last);
    for (int32_t begin = first; begin < last; begin += chunk_) sort_chunk(begin, least(chunk_, last - begin));
    return Code::OK;
  }

 private:
  static constexpr int32_t kNumParts = 5;  // lists of a chunk

  __aicore__ inline bool is_weighed() const { return keeps_heaviest(route_); }
  __aicore__ inline DropPolicy policy() const { return static_cast<DropPolicy>(route_.drop_policy); }

  __aicore__ inline void read_chunk(int32_t begin, int32_t count) {
    drain_pipes();
    const auto first = static_cast<uint64_t>(shards_.choice_of(begin));
    const int32_t choices = count / shards_.tp_size;
    on_.read(has_shards() ? values_ : ids_, on_.buffer(route_.ids_buffer) + first * 4, choices);
    if (is_weighed()) {
      const uint64_t from = weights_.address + first * weights_.size();
      on_.unit.copy_in(loaded_.ReinterpretCast<uint8_t>(), from, 1, choices * weights_.size(), 0, 0);
    }
    on_.unit.wait_for_loads();
    for (int32_t i = 0; has_shards() && i < count; ++i)
      ids_.SetValue(i, shards_.shard_of(values_.GetValue(shards_.choice_of(i)), i));
  }
  __aicore__ inline bool has_shards() const { return shards_.tp_size > 1; }
  __aicore__ inline uint32_t weight_bits(int32_t i) const { return weights_.bits(loaded_, shards_.choice_of(i)); }
  __aicore__ inline void read_lightest() {
    drain_pipes();
    on_.read(lightest_, on_.word(tables_.lightest), route_.num_experts);
    on_.read(last_, on_.word(tables_.last), route_.num_experts);
    on_.unit.wait_for_loads();
  }
  __aicore__ inline bool is_heavy(int32_t begin, int32_t i, int32_t id) const {
    const uint32_t key = weights_.key(weight_bits(i)), lightest = static_cast<uint32_t>(lightest_.GetValue(id));
    return key > lightest || (key == lightest && begin + i <= last_.GetValue(id));
  }

  // Counts a chunk; finds an id out of range, otherwise the first weight that is NaN.
  __aicore__ inline Code count_chunk(int32_t begin, int32_t count, bool is_first) {
    Code code = Code::OK;
    read_chunk(begin, count);
    for (int32_t i = 0; i < count; ++i) {
      const int32_t id = ids_.GetValue(i);
      if (id == kAbsent) continue;
      if (id < 0 || id >= route_.num_experts) {
        on_.status.value = has_shards() ? values_.GetValue(shards_.choice_of(i)) : id;
        on_.status.threshold = shards_.num_model_experts();
        return Code::INDEX_OUT_OF_RANGE;
      }
      if (is_weighed() && is_first && code == Code::OK && weights_.is_nan(weight_bits(i))) {
        on_.status.value = (begin + i) / route_.top_k;
        on_.status.threshold = (begin + i) % route_.top_k % shards_.num_choices();
        code = Code::NOT_A_NUMBER;
      }
      if (is_full_ || is_heavy(begin, i, id)) all_.SetValue(id, all_.GetValue(id) + 1);
    }
    return code;
  }

  // Returns an error if an expert is over its capacity, or counts the entries that each expert drops.
  __aicore__ inline Code look_at_capacity() {
    if (policy() == DropPolicy::NONE || (is_weighed() && !is_full_)) return Code::OK;
    const int32_t capacity = on_.capacity(number_);
    if (policy() == DropPolicy::ERROR) return check_capacity(CountsOf{all_}, shards_, capacity, on_.status);
    for (int32_t e = 0; e < route_.num_experts; ++e) work_.SetValue(e, most(all_.GetValue(e) - capacity, 0));
    on_.publish();
    on_.write(on_.word(tables_.dropped), work_, route_.num_experts);
    drain_pipes();
    return Code::OK;
  }

  // Finds, for each local expert, which entries of its expert it takes, and where this core's part begins in the sorted
  // list. Sets `work` to the starts of the local experts.
  __aicore__ inline void find_places() {
    if (policy() == DropPolicy::POSITION) {
      const int32_t capacity = on_.capacity(number_);
      for (int32_t e = 0; e < route_.num_experts; ++e) all_.SetValue(e, least(all_.GetValue(e), capacity));
    }
    for (int32_t e = 0; e < tables_.width; ++e) newest_.SetValue(e, -1);
    const int32_t num_lists = is_full_ ? route_.num_experts : num_local_;
    int32_t start = 0;
    for (int32_t e = 0; e < num_lists; ++e) {
      const int32_t expert = find_part(e), low = low_.GetValue(e), high = high_.GetValue(e);
      work_.SetValue(e, start);
      const int32_t before = expert < 0 ? 0 : before_.GetValue(expert);
      next_.SetValue(e, start + most(least(before, high) - low, 0));
      start += high - low;
    }
    for (int32_t e = num_lists; e < tables_.width; ++e) work_.SetValue(e, start);
    num_lists_ = num_lists;
    is_noted_ = is_noted_ || start < on_.rank.args.num_tokens * route_.top_k;
    if (on_.core != 0 || is_full_) return;
    on_.publish();
    on_.write(on_.word(tables_.sent + on_.rank.args.rank * tables_.width), work_, tables_.width);
    drain_pipes();
  }

  // Returns the expert that a local expert is a replica of, or -1; sets low and high to its range of entries.
  __aicore__ inline int32_t find_part(int32_t e) {
    const bool is_cut = has_copies_ && !is_full_;
    Share share{e, 0, kWhole};
    if (is_cut) share = on_.rank.image.share(route_.first_share + e);
    EntryRun run{0, share.expert < 0 ? 0 : all_.GetValue(share.expert)};
    if (is_cut && share.expert >= 0) {
      run = run_of(share, run.high, on_.rank.args.rank, on_.rank.image.header().ep_size);
      older_.SetValue(e, newest_.GetValue(share.expert));
      newest_.SetValue(share.expert, e);
    }
    low_.SetValue(e, run.low);
    high_.SetValue(e, run.high);
    return share.expert;
  }

  // Returns the local expert that takes an entry, given its place among its expert's entries, or -1.
  __aicore__ inline int32_t local_of(int32_t expert, int32_t place) const {
    if (!has_copies_ || num_lists_ != num_local_) return place < high_.GetValue(expert) ? expert : -1;
    int32_t e = newest_.GetValue(expert);
    while (e >= 0 && (place < low_.GetValue(e) || place >= high_.GetValue(e))) e = older_.GetValue(e);
    return e;
  }

  __aicore__ inline void sort_chunk(int32_t begin, int32_t count) {
    read_chunk(begin, count);
    for (int32_t i = 0; i < count; ++i) {
      const int32_t id = ids_.GetValue(i);
      int32_t local = -1, place = 0;
      if (id != kAbsent && (is_full_ || !is_weighed() || is_heavy(begin, i, id))) {
        place = before_.GetValue(id);
        before_.SetValue(id, place + 1);
        local = local_of(id, place);
      }
      ids_.SetValue(i, local);
      places_.SetValue(i, local < 0 ? 0 : place - low_.GetValue(local));
      values_.SetValue(i, begin + i);
    }
    on_.append(ids_, values_, 1, count, num_lists_, next_, tables_.entries, work_, staged_);
    if (!is_noted_ || is_full_) return;
    on_.write(on_.word(tables_.chosen + begin), ids_, count);
    on_.write(on_.word(tables_.place + begin), places_, count);
  }

  PrologueUnit& on_;
  const int32_t number_;
  const RouteWords route_;
  const RouteTables tables_;
  const DecidingWeights weights_;
  const Shards shards_;
  bool is_noted_, has_copies_ = false, is_full_ = true;
  int32_t num_local_ = 0, num_lists_ = 0, chunk_ = 0;
  Words all_, before_, low_, high_, next_, work_, newest_, older_, lightest_, last_;  // by expert, or by local expert
  Words ids_, places_, values_, loaded_, staged_;  // of a chunk
};

}  // namespace hpmoe

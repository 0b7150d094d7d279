// The AIV cores' work before any task: sort the rank's entries by expert, send counts to the other ranks, place the rows,
// and set the targets of all events. tables.h explains the letters.
//
// The work is divided by experts or tokens, by ranks, and by events. Ranks meet once, after each has sent where its
// entries begin. Even and odd launches have separate tables, because a rank that is ahead may write those of the next
// launch.
#pragma once

#include "gather_sort.h"
#include "heaviest.h"
#include "plan_choice.h"
#include "stop_sort.h"
#include "targets.h"

namespace hpmoe {

class Prologue {
 public:
  __aicore__ inline Prologue(RankView& rank, const Counters& counters, VectorUnit& unit, int32_t core, Status& status)
      : rank_(rank), core_(core), status_(status), on_(rank, counters, unit, core, status) {}

  // Returns OK or an error, with its numbers in the status.
  __aicore__ inline Code run() {
    const int32_t num_routes = rank_.image.header().num_routes, epoch = rank_.args.epoch,
                  all = wrapping_product(epoch, rank_.num_aiv);
    if (core_ == 0) leave_units(num_routes);
    Code code = sort_entries(num_routes);
    if (waits_for_lists_ && code == Code::OK) code = on_.meet(kSorted, all);
    if (code != Code::OK) return code;
    tell_others(num_routes);
    if (!waits_for_lists_) on_.signal(kSorted);
    Targets targets(on_);
    const bool chooses = has_plans_behind(rank_);
    if (!chooses) targets.read_first();
    if (core_ < rank_.ep_size()) code = on_.wait(kSorted, all);
    if (code == Code::OK) say_all_is_listed();
    if (code == Code::OK) code = wait_for_ranks(wrapping_sum(wrapping_product(2, epoch), -1));
    if (chooses && code == Code::OK) {
      PlanChoice(on_, rank_).take();
      targets.read_first();
    }
    for (int32_t r = 0; r < num_routes && code == Code::OK; ++r) code = place_rows(r);
    for (int32_t r = 0; r < num_routes && code == Code::OK; ++r) targets.write_slots(r);
    if (code == Code::OK) code = targets.set();
    if (core_ + 1 == rank_.num_aiv && code == Code::OK) code = wait_for_ranks(wrapping_product(2, epoch));
    if (code == Code::OK) on_.signal(kReady);
    return code;
  }

 private:
  // Writes unit matrices, with which replicas' weight gradients are added.
  __aicore__ inline void leave_units(int32_t num_routes) {
    bool has_any = false;
    for (int32_t r = 0; r < num_routes; ++r)
      has_any = has_any || has_copies(rank_.image.route(r), rank_.image.header().ep_size);
    if (!has_any) return;
    const Words words = on_.words(0);
    on_.clear(words, kUnitWords);
    for (int32_t i = 0; i < kLane; ++i) {
      words[kUnitBfloat16].ReinterpretCast<uint16_t>().SetValue(i * kLane + i, 0x3F80);
      words[kUnitFloat16].ReinterpretCast<uint16_t>().SetValue(i * kLane + i, 0x3C00);
      words.SetValue(kUnitFloat32 + i / 8 * 128 + i * 8 + i % 8, 0x3F800000);
    }
    on_.publish();
    on_.write(rank_.args.tables, words, kUnitWords);
    drain_pipes();
  }

  // Steps of the cores between two barriers.
  enum class Step { COUNT, SORT_ALL, CHOOSE, COUNT_HEAVIEST, SORT, COUNT_BY_RANK, SORT_BY_RANK };

  __aicore__ inline Code sort_entries(int32_t num_routes) {
    bool weighs = false, fans = false;
    for (int32_t r = 0; r < num_routes; ++r) {
      weighs = weighs || keeps_heaviest(rank_.image.route(r));
      fans = fans || rank_.image.route(r).of >= 0;
    }
    num_met_ = wrapping_product(wrapping_sum(rank_.args.epoch, -1), 1 + (weighs ? 3 : 0) + (fans ? 1 : 0));
    Code code = take_and_meet(Step::COUNT);
    if (weighs && code == Code::OK) code = take_and_meet(Step::SORT_ALL);
    if (weighs && code == Code::OK) code = take_and_meet(Step::CHOOSE);
    if (weighs && code == Code::OK) code = take_and_meet(Step::COUNT_HEAVIEST);
    if (code == Code::OK) code = take(Step::SORT);
    if (fans && code == Code::OK) code = take_and_meet(Step::COUNT_BY_RANK);
    if (fans && code == Code::OK) code = take(Step::SORT_BY_RANK);
    return code;
  }
  __aicore__ inline Code take_and_meet(Step step) {
    const Code code = take(step);
    if (code != Code::OK) return code;
    num_met_ = wrapping_sum(num_met_, 1);
    return on_.meet(kCounted, wrapping_product(num_met_, rank_.num_aiv));
  }
  __aicore__ inline Code take(Step step) {
    Code code = Code::OK;
    for (int32_t r = 0; r < rank_.image.header().num_routes && code == Code::OK; ++r) {
      const RouteWords route = rank_.image.route(r);
      if (step == Step::COUNT_BY_RANK || step == Step::SORT_BY_RANK) {
        if (route.of >= 0) take_by_rank(step, r);
      } else if (route.of < 0 && (step == Step::COUNT || step == Step::SORT || keeps_heaviest(route))) {
        code = take_by_expert(step, r);
      }
    }
    return code;
  }
  __aicore__ inline Code take_by_expert(Step step, int32_t r) {
    if (is_gathered(r)) return gather(step, r);
    waits_for_lists_ = true;
    if (step == Step::CHOOSE) {
      Heaviest(on_, r).run();
      return Code::OK;
    }
    EntrySort sort(on_, r, is_asked(r));
    const bool all = step == Step::COUNT || step == Step::SORT_ALL;
    return step == Step::COUNT || step == Step::COUNT_HEAVIEST ? sort.count(all) : sort.sort(all);
  }
  __aicore__ inline Code gather(Step step, int32_t r) {
    GatherSort sort(on_, r, is_kept_);
    if (step == Step::COUNT) {
      sort.count(is_alone());
      return Code::OK;
    }
    const Code code = sort.sort();
    waits_for_lists_ = waits_for_lists_ || !sort.keeps_all();
    return code;
  }
  __aicore__ inline bool is_gathered(int32_t r) const {
    return !is_asked(r) && hpmoe::is_gathered(rank_.image.route(r), rank_.image.header().ep_size);
  }
  __aicore__ inline bool is_alone() const { return rank_.image.header().num_routes == 1; }
  __aicore__ inline void take_by_rank(Step step, int32_t r) {
    StopSort sort(on_, r);
    step == Step::COUNT_BY_RANK ? sort.count() : sort.sort();
  }
  // Returns true if a route to ranks needs the single entries of route r.
  __aicore__ inline bool is_asked(int32_t r) const {
    bool asked = false;
    for (int32_t other = 0; other < rank_.image.header().num_routes; ++other)
      asked = asked || rank_.image.route(other).of == r;
    return asked;
  }

  // Writes where this rank's entries begin to every rank; ranks are divided among the cores.
  __aicore__ inline void tell_others(int32_t num_routes) {
    for (int32_t rank = core_; rank < rank_.image.header().ep_size; rank += rank_.num_aiv) {
      for (int32_t r = 0; r < num_routes; ++r) is_gathered(r) ? tell_starts(r, rank) : tell_sent(r, rank);
      drain_pipes();
      signal_to(rank);
    }
  }
  // Sends the second signal of a launch to every rank: the lists of this rank may be read.
  __aicore__ inline void say_all_is_listed() {
    for (int32_t other = core_; other < rank_.ep_size(); other += rank_.num_aiv) signal_to(other);
  }
  __aicore__ inline void signal_to(int32_t rank) {
    const int32_t counter = on_.counters.prologue(kExchanged + rank_.args.rank);
    on_.unit.add_to_counter(address_on(on_.counters.address(counter), rank), 1);
  }
  __aicore__ inline Code wait_for_ranks(int32_t target) {
    Code code = Code::OK;
    for (int32_t source = 0; source < rank_.ep_size() && code == Code::OK; source = first_below(target))
      code = on_.wait(kExchanged + source, target);
    return code;
  }
  // Returns the first rank whose counter is below a target; one copy reads all counters.
  __aicore__ inline int32_t first_below(int32_t target) {
    const uint64_t counters = on_.counters.address(on_.counters.prologue(kExchanged));
    const int32_t ep_size = rank_.ep_size(), far = on_.counters.address(1) - on_.counters.address(0);
    int32_t source = 0;
    drain_pipes();
    on_.unit.copy_in(on_.words(0).ReinterpretCast<uint8_t>(), counters, ep_size, sizeof(int32_t), far, kBlockBytes);
    on_.unit.wait_for_loads();
    while (source < ep_size && is_at_least(on_.words(source * kBlockBytes / 4).GetValue(0), target)) ++source;
    return source;
  }
  __aicore__ inline void tell_starts(int32_t r, int32_t rank) {
    const RouteTables tables = rank_.image.tables(r, rank_.num_aiv);
    GatherSort sort(on_, r, is_kept_);
    if (!is_alone()) (void)sort.find_starts();
    const uint64_t mine = on_.word(tables.sent + rank_.args.rank * tables.width);
    on_.write(address_on(mine, rank), sort.starts(), rank_.image.route(r).num_experts + 1);
  }
  // Writes this rank's starts to a rank; the first core has written those of other routes here.
  __aicore__ inline void tell_sent(int32_t r, int32_t rank) {
    if (rank == rank_.args.rank) return;
    const RouteTables tables = rank_.image.tables(r, rank_.num_aiv);
    const uint64_t mine = on_.word(tables.sent + rank_.args.rank * tables.width);
    const Words row = on_.words(0);
    drain_pipes();
    on_.read(row, mine, tables.width);
    drain_pipes();
    on_.write(address_on(mine, rank), row, tables.width);
  }

  // Places the rows of each rank's experts; ranks are divided among the cores. Every rank finds an overflow before any
  // row moves, from the same numbers.
  __aicore__ inline Code place_rows(int32_t r) {
    UbWords ub(on_);
    Placement placement(on_, ub);
    for (int32_t dest = core_; dest < rank_.ep_size(); dest += rank_.num_aiv) {
      placement.find(r, dest, true);
      placement.write();
      if (check_row_capacity(r, dest, placement) != Code::OK) return find_overflow();
    }
    return Code::OK;
  }

  __aicore__ inline Code check_row_capacity(int32_t r, int32_t dest, const Placement& placement) {
    const RouteWords route = rank_.image.route(r);
    const Code code = check_received(route, rank_.tile_rows(), placement.received(), placement.num_slots(), status_);
    if (code != Code::SLOT_OVERFLOW) return code;
    status_.rank = dest;
    status_.wait = r;
    return code;
  }

  // Reports the first rank of the first route with an overflow, whichever core found it, so that all report the same.
  __aicore__ inline Code find_overflow() {
    UbWords ub(on_);
    Placement placement(on_, ub);
    Code code = Code::OK;
    for (int32_t r = 0; r < rank_.image.header().num_routes && code == Code::OK; ++r) {
      for (int32_t dest = 0; dest < rank_.ep_size() && code == Code::OK; ++dest) {
        placement.find(r, dest, false);
        code = check_row_capacity(r, dest, placement);
      }
    }
    return code;
  }

  RankView& rank_;
  const int32_t core_;
  Status& status_;
  PrologueUnit on_;
  int32_t num_met_ = 0;
  bool is_kept_ = false;  // gathered entries stay in UB
  bool waits_for_lists_ = false;  // before it signals other ranks
};

}  // namespace hpmoe

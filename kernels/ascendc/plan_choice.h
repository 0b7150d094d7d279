// Selects the plan of a launch if an image holds several: the first plan for at least the rows that the fullest rank
// receives, or else the last. Every AIV core computes it from the counts of all ranks, and every rank from the same
// numbers. AIC cores read the number that the first AIV core writes.
#pragma once

#include "plans.h"
#include "prologue_unit.h"

namespace hpmoe {

// Switches the view to the plan after the current one.
__aicore__ inline void take_next_plan(RankView& rank) {
  const PlanPlace place = PlanPlace{rank.plan, 0, 0}.behind(rank.image.header());
  rank.plan = place.number;
  rank.args.image += static_cast<uint64_t>(place.first_byte);
  rank.args.buffers += static_cast<uint64_t>(place.first_word) * sizeof(uint64_t);
  rank.image.init(rank.args.image);
}

__aicore__ inline bool has_plans_behind(const RankView& rank) { return rank.image.header().num_behind > 0; }

// Switches to the selected plan on a core that does not compute it.
__aicore__ inline Code take_chosen_plan(RankView& rank, const Counters& counters) {
  if (!has_plans_behind(rank)) return Code::OK;
  const Code code = code_of(counters.wait(counters.prologue(kChosen), rank.args.epoch));
  if (code != Code::OK) return code;
  for (int32_t left = global_at<int32_t>(rank.args.tables).GetValue(kChosenPlan); left > 0; --left) take_next_plan(rank);
  return Code::OK;
}

class PlanChoice {
 public:
  __aicore__ inline PlanChoice(PrologueUnit& on, RankView& rank) : on_(on), rank_(rank) {}

  __aicore__ inline void take() {
    const int32_t rows = find_most_rows();
    while (has_plans_behind(rank_) && rows > rank_.image.header().most_received) take_next_plan(rank_);
    if (on_.core == 0) leave();
  }

 private:
  // Returns the rows of the fullest rank, without padding rows. The counts of ranks are sums over the experts before
  // each, so their differences are used.
  __aicore__ inline int32_t find_most_rows() {
    const RouteWords route = rank_.image.route(0);
    const RouteTables tables = rank_.image.tables(0, rank_.num_aiv);
    const int32_t ep_size = rank_.ep_size(), width = tables.width, at_once = PrologueUnit::kWords / width - 1;
    const Words sums = on_.words(0), rows = on_.words(width);
    drain_pipes();
    AscendC::Duplicate(sums, 0, width);
    for (int32_t first = 0; first < ep_size; first += at_once) {
      const int32_t ranks = least(at_once, ep_size - first);
      on_.read(rows, on_.word(tables.sent + first * width), ranks * width);
      drain_pipes();
      for (int32_t s = 0; s < ranks; ++s) {
        in_order::Add(sums, sums, rows[s * width], width);
      }
      drain_pipes();
    }
    int32_t found = 0, before = 0;
    for (int32_t dest = 0; dest < ep_size; ++dest) {
      const int32_t end = sums.GetValue((dest + 1) * route.num_local_experts);
      found = most(found, end - before);
      before = end;
    }
    return found;
  }

  __aicore__ inline void leave() {
    const Words line = on_.words(0);
    drain_pipes();
    line.SetValue(0, rank_.plan);
    on_.publish();
    on_.write(on_.word(kChosenPlan), line, kBlockBytes / 4);
    on_.signal(kChosen);
  }

  PrologueUnit& on_;
  RankView& rank_;
};

}  // namespace hpmoe

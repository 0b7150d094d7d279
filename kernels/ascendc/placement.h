// Finds where the rows of a rank's experts are, after all ranks have sent their counts. Each core does this for its share
// of the ranks and for its own rank. Vector instructions add over ranks and experts.
#pragma once

#include "routing_tables.h"
#include "running_sums.h"

namespace hpmoe {

class Placement {
 public:
  static constexpr int32_t kAtOnce = RunningSums::kWords / 2, kMostExperts = RunningSums::kMostSums,
                           kWords = 3 * kAtOnce + 5 * kMostExperts;  // of UB

  __aicore__ inline Placement(PrologueUnit& on, UbWords& ub) : on_(on) {
    low_ = ub.take(kAtOnce);
    high_ = ub.take(kAtOnce);
    sums_ = ub.take(kAtOnce + kMostExperts);
    Words* const by_expert[] = {&own_, &ahead_, &starts_, &slots_};
    for (Words* table : by_expert) *table = ub.take(kMostExperts);
  }

  // Finds a route's rows on rank `dest`. If `writes`, writes the rows from ranks before each rank to this rank's table;
  // only the first such core does.
  __aicore__ inline void find(int32_t number, int32_t dest, bool writes) {
    route_ = on_.rank.image.route(number);
    tables_ = on_.rank.image.tables(number, on_.rank.num_aiv);
    dest_ = dest;
    pitch_ = round_up(route_.num_local_experts, kBlockBytes / 4);
    const int32_t ranks_at_once = kAtOnce / pitch_, ep_size = on_.rank.ep_size();
    drain_pipes();
    AscendC::Duplicate(sums_, 0, pitch_);
    for (int32_t first = 0; first < ep_size; first += ranks_at_once) {
      const int32_t ranks = least(ranks_at_once, ep_size - first);
      add_up(first, ranks);
      if (writes && dest == on_.rank.me()) write_before(first, ranks);
      if (first + ranks == ep_size) last_ = sums_[ranks * pitch_];
      if (first + ranks < ep_size) copy(sums_, sums_[ranks * pitch_]);
    }
    find_rows();
    on_.unit.wait_for_results();
  }

  // Writes what all ranks send to rank `dest`, and the offsets of this rank's rows there.
  __aicore__ inline void write() {
    const int32_t experts = route_.num_local_experts;
    on_.publish();
    on_.write(on_.word(tables_.expert_start + dest_ * tables_.narrow), starts_, experts + 1);
    on_.write(on_.word(tables_.slot_start + dest_ * tables_.narrow), slots_, experts + 1);
    on_.write(on_.word(tables_.own_start + dest_ * tables_.narrow), own_, experts);
    on_.write(on_.word(tables_.ahead + dest_ * experts), ahead_, experts);
  }

  __aicore__ inline int32_t start(int32_t e) const { return starts_.GetValue(e); }
  __aicore__ inline int32_t rows(int32_t e) const { return start(e + 1) - start(e); }
  __aicore__ inline int32_t received() const { return start(route_.num_local_experts); }
  __aicore__ inline int32_t first_slot(int32_t e) const { return slots_.GetValue(e); }
  __aicore__ inline int32_t num_slots() const { return first_slot(route_.num_local_experts); }
  __aicore__ inline int32_t num_experts() const { return route_.num_local_experts; }
  // Padding rows of an expert.
  __aicore__ inline int32_t padding(int32_t e) const { return rows(e) - last_.GetValue(e); }

  // Rows of an expert from ranks before `dest`.
  __aicore__ inline int32_t own_start(int32_t e) const { return own_.GetValue(e); }

 private:
  // Sets sums[s] = rows of each expert from ranks before first + s.
  __aicore__ inline void add_up(int32_t first, int32_t ranks) {
    const int32_t experts = route_.num_local_experts;
    const uint64_t from = on_.word(tables_.sent + first * tables_.width + dest_ * experts);
    drain_pipes();
    read_columns(low_, from, ranks);
    read_columns(high_, from + sizeof(int32_t), ranks);
    drain_pipes();
    in_order::Sub(high_, high_, low_, ranks * pitch_);
    for (int32_t s = 0; s < ranks; ++s) {
      if (first + s == dest_) copy(own_, sums_[s * pitch_]);
      if (first + s == on_.rank.me()) copy(ahead_, sums_[s * pitch_]);
      in_order::Add(sums_[(s + 1) * pitch_], sums_[s * pitch_], high_[s * pitch_], pitch_);
    }
  }
  __aicore__ inline void read_columns(const Words& to, uint64_t from, int32_t ranks) {
    const int32_t bytes = route_.num_local_experts * static_cast<int32_t>(sizeof(int32_t));
    on_.unit.copy_in(to.ReinterpretCast<uint8_t>(), from, ranks, bytes, tables_.width * 4, pitch_ * 4);
  }
  __aicore__ inline void copy(const Words& to, const Words& from) { AscendC::Adds(to, from, 0, pitch_); }

  __aicore__ inline void write_before(int32_t first, int32_t ranks) {
    const int32_t bytes = route_.num_local_experts * static_cast<int32_t>(sizeof(int32_t));
    drain_pipes();
    on_.unit.copy_out(on_.word(tables_.before + first * tables_.narrow), sums_.ReinterpretCast<uint8_t>(), ranks, bytes,
                      tables_.narrow * 4, pitch_ * 4);
    drain_pipes();
  }

  // Finds rows and slots of each expert, and of the experts before it. Overwrites low and high.
  __aicore__ inline void find_rows() {
    const int32_t experts = route_.num_local_experts;
    RunningSums sums(low_, experts);
    AscendC::PipeBarrier<PIPE_V>();
    sums.init();
    AscendC::Adds(sums.list(), last_, 0, pitch_);
    if (route_.alignment > 1) {
      divide(sums.list(), route_.alignment);
      AscendC::Muls(sums.list(), sums.list(), route_.alignment, pitch_);
    }
    AscendC::PipeBarrier<PIPE_V>();
    copy(slots_, sums.list());
    copy_sums(starts_, sums.find());
    AscendC::Adds(sums.list(), slots_, 0, pitch_);
    divide(sums.list(), on_.rank.tile_rows());
    copy_sums(slots_, sums.find());
  }
  __aicore__ inline void copy_sums(const Words& to, const Words& sums) {
    in_order::Adds(to, sums, 0, route_.num_local_experts + 1);
  }
  // Rounds up: subtracts half a step, then rounds. Exact up to kMostRows; more rows than that count as one step.
  static constexpr int32_t kMostRows = 1 << 22;
  __aicore__ inline void divide(const Words& rows, int32_t step) {
    const int32_t by = least(step, kMostRows);
    const Floats quotients = rows.ReinterpretCast<float>();
    AscendC::PipeBarrier<PIPE_V>();
    in_order::Cast(quotients, rows, AscendC::RoundMode::CAST_RINT, pitch_);
    in_order::Adds(quotients, quotients, 0.5f * static_cast<float>(by - 1), pitch_);
    in_order::Muls(quotients, quotients, 1.0f / static_cast<float>(by), pitch_);
    in_order::Cast(rows, quotients, AscendC::RoundMode::CAST_RINT, pitch_);
  }

  PrologueUnit& on_;
  RouteWords route_;
  RouteTables tables_;
  int32_t dest_ = 0, pitch_ = 0;
  Words low_, high_, sums_, last_, own_, ahead_, starts_, slots_;  // low, high and sums by rank and expert, others by expert
};

}  // namespace hpmoe

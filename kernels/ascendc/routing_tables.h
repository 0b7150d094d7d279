// Answers questions about the routing from the tables that the prologue filled; the device's version of core/routing.h.
#pragma once

#include "core/expert_copies.h"
#include "core/route_counts.h"
#include "core/units.h"
#include "image_reader.h"

namespace hpmoe {

using Unit = UnitOf<int32_t>;

using Segment = SegmentOf<int32_t>;

// A local expert with a received row of a token, and the row's place among the rows of its source.
struct Fan {
  int32_t expert, place;
};

class RoutingTables : public RouteCounts<RoutingTables, int32_t>, public ExpertCopies<RoutingTables> {
 public:
  __aicore__ inline void init(const ImageReader& image, int32_t route, int32_t num_aiv, const LaunchArgs& args) {
    words_ = global_at<int32_t>(args.tables);
    tile_rows_ = image.header().tile_rows;
    rank_ = args.rank;
    num_tokens_ = args.num_tokens;
    num_aiv_ = num_aiv;
    image_ = &image;
    address_ = args.tables;
    take(route);
  }

  __aicore__ inline const RouteWords& route() const { return route_; }
  __aicore__ inline const RouteTables& tables() const { return tables_; }

  __aicore__ inline int32_t expert_start(int32_t rank, int32_t expert) const {
    return at(tables_.expert_start, rank, tables_.narrow, expert);
  }
  // source or dest must be this rank.
  __aicore__ inline int32_t source_start(int32_t source, int32_t dest, int32_t expert) const {
    const int32_t before = dest == rank_ ? at(tables_.before, source, tables_.narrow, expert)
                                         : words_.GetValue(tables_.ahead + dest * route_.num_local_experts + expert);
    return expert_start(dest, expert) + before;
  }
  __aicore__ inline int32_t sent_start(int32_t source, int32_t expert) const {
    return at(tables_.sent, source, tables_.width, expert);
  }
  // Returns the routing to the relays of this route.
  __aicore__ inline RoutingTables relays() const {
    RoutingTables relays = *this;
    relays.take(route_.over);
    return relays;
  }
  __aicore__ inline int32_t stop(int32_t source, int32_t dest) const { return image_->stop(route_, source, dest); }

  // Returns true if no entry of this rank's tokens is dropped or masked.
  __aicore__ inline bool keeps_all() const { return all_kept_entries(rank_) == num_tokens_ * route_.top_k; }
  // Returns the padding rows of a local expert: its rows minus the entries of all ranks.
  __aicore__ inline int32_t expert_padding(int32_t, int32_t expert) const {
    if (route_.alignment == 1) return 0;
    const int32_t last = image_->header().ep_size - 1;
    return expert_rows(rank_, expert) - at(tables_.before, last, tables_.narrow, expert) -
           entries_for(last, rank_, expert, expert + 1);
  }

  __aicore__ inline int32_t own_start(int32_t rank, int32_t expert) const {
    return at(tables_.own_start, rank, tables_.narrow, expert);
  }
  __aicore__ inline int32_t first_slot(int32_t rank, int32_t expert) const {
    return at(tables_.slot_start, rank, tables_.narrow, expert);
  }
  __aicore__ inline Unit slot(int32_t rank, int32_t index) const {
    if (rank == rank_) return own_slot(index);
    if (rank != slots_rank_ || index < slots_.first || index - slots_.first >= slots_.count) find_slots(rank, index);
    return slots_.unit(index, slots_end_);
  }

  // Returns the slot of a received row of one of this rank's experts.
  __aicore__ inline int32_t slot_of(int32_t expert, int32_t row) const { return expert_slots(rank_, expert).slot_of(row); }
  // Returns this rank's received row of a token of `source`.
  __aicore__ inline int32_t row_of(int32_t source, const Fan& fan) const {
    return source_start(source, rank_, fan.expert) + fan.place;
  }

  // Experts without replica slots.
  __aicore__ inline int32_t num_own_experts() const { return num_own_; }
  __aicore__ inline int32_t num_local_experts() const { return route_.num_local_experts; }
  __aicore__ inline int32_t ep_size() const { return image_->header().ep_size; }
  __aicore__ inline int32_t alignment() const { return route_.alignment; }
  __aicore__ inline int32_t tile_rows() const { return tile_rows_; }
  __aicore__ inline int32_t return_tokens() const { return route_.return_tokens; }
  __aicore__ inline Share share(int32_t rank, int32_t expert) const {
    return image_->share(route_.first_share + rank * route_.num_local_experts + expert);
  }

 private:
  __aicore__ inline void take(int32_t route) {
    route_ = image_->route(route);
    tables_ = image_->tables(route, num_aiv_);
    num_own_ = route_.num_experts / image_->header().ep_size;
    slots_rank_ = num_used_ = own_index_ = own_line_ = -1;
  }

  // Returns a slot of this rank from a table; preloads the table's next line.
  __aicore__ inline Unit own_slot(int32_t index) const {
    if (index == own_index_) return own_slot_;
    if (num_used_ < 0) num_used_ = num_used_slots(rank_);
    own_index_ = index;
    own_slot_ = index < num_used_ ? read_slot(index) : Unit{received(rank_), 0, route_.num_local_experts - 1};
    return own_slot_;
  }
  __aicore__ inline Unit read_slot(int32_t index) const {
    constexpr int32_t in_line = kLineBytes / sizeof(uint64_t);
    const uint64_t table = address_ + static_cast<uint64_t>(tables_.slots) * sizeof(int32_t);
    if (index / in_line != own_line_ && (index / in_line + 1) * in_line < num_used_)
      preload(table + (index / in_line + 1) * kLineBytes);
    own_line_ = index / in_line;
    const uint64_t both = global_at<uint64_t>(table).GetValue(index);
    const auto upper = static_cast<uint32_t>(both >> 32);
    return {static_cast<int32_t>(both), static_cast<int32_t>(upper % (1u << kSlotBits)),
            static_cast<int32_t>(upper >> kSlotBits)};
  }

  // Finds the slots of an expert; the last result is cached, because neighbouring tasks use slots of the same expert.
  __aicore__ inline void find_slots(int32_t rank, int32_t index) const {
    const int32_t e = expert_of_slot(rank, index), num_experts = route_.num_local_experts;
    slots_rank_ = rank;
    slots_end_ = expert_start(rank, least(e + 1, num_experts));
    slots_ = e < num_experts ? expert_slots(rank, e)
                             : ExpertSlots{num_experts - 1, first_slot(rank, e), kMostSlots, 0, slots_end_, 0};
  }
  __aicore__ inline int32_t at(int32_t table, int32_t row, int32_t width, int32_t i) const {
    return words_.GetValue(table + row * width + i);
  }

  static constexpr int32_t kMostSlots = 0x7FFFFFFF;

  RouteWords route_;
  RouteTables tables_;
  mutable ExpertSlots slots_{0, 0, 0, 0, 0, 0};  // of a rank, and the end of the rows of their expert
  mutable int32_t slots_rank_ = -1, slots_end_ = 0;
  mutable Unit own_slot_{0, 0, 0};
  mutable int32_t num_used_ = -1, own_index_ = -1, own_line_ = -1;
  uint64_t address_ = 0;
  AscendC::GlobalTensor<int32_t> words_;
  const ImageReader* image_ = nullptr;
  int32_t num_aiv_ = 0, tile_rows_ = 0, rank_ = 0, num_tokens_ = 0, num_own_ = 0;
};

}  // namespace hpmoe

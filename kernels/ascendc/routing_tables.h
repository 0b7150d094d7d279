// Questions about the routing, answered from the tables that the prologue filled: the device's core/routing.h.
#pragma once

#include "core/units.h"
#include "image_reader.h"

namespace hpmoe {

using Unit = UnitOf<int32_t>;

// The rows that one rank sends to one local expert of another, cut to a slot: entries from first_entry of the source's on.
// The last `padding` of them are zeros, from first_padding on. Or rows of a matrix, from first_entry on.
struct Segment {
  int32_t source, dest, expert, rows, first_row, first_entry, padding = 0, first_padding = 0;
  int32_t of_source = -1;  // where relays pass rows on, the rank of their tokens; `source` is the relay then

  __aicore__ inline int32_t num_entries() const { return rows - padding; }

  __aicore__ static inline Segment of_matrix(int32_t source, int32_t dest, int32_t expert, int64_t rows, int64_t first_row,
                                             int64_t from) {
    return {source, dest, expert, static_cast<int32_t>(rows), static_cast<int32_t>(first_row), static_cast<int32_t>(from)};
  }
};

// Replica slot `slot` of rank `host`, a copy of its owner's local expert `expert`; host is -1 where there is none.
struct Copy {
  int32_t expert, host, slot;
};

// A local expert that a received row of a token is of, and the row's place among those of its source.
struct Fan {
  int32_t expert, place;
};

class RoutingTables {
 public:
  __aicore__ inline void init(const ImageReader& image, int32_t route, int32_t num_aiv, const LaunchArgs& args) {
    route_ = image.route(route);
    tables_ = image.tables(route, num_aiv);
    words_ = global_at<int32_t>(args.tables);
    tile_rows_ = image.header().tile_rows;
    rank_ = args.rank;
    num_tokens_ = args.num_tokens;
    num_aiv_ = num_aiv;
    image_ = &image;
    num_own_ = route_.num_experts / image.header().ep_size;
    slots_.rank = num_used_ = own_index_ = own_line_ = -1;
    address_ = args.tables;
  }

  __aicore__ inline const RouteWords& route() const { return route_; }
  __aicore__ inline const RouteTables& tables() const { return tables_; }

  __aicore__ inline int32_t expert_start(int32_t rank, int32_t expert) const {
    return at(tables_.expert_start, rank, tables_.narrow, expert);
  }
  __aicore__ inline int32_t expert_rows(int32_t rank, int32_t expert) const {
    return expert_start(rank, expert + 1) - expert_start(rank, expert);
  }
  __aicore__ inline int32_t received(int32_t rank) const { return expert_start(rank, route_.num_local_experts); }
  // One of source and dest is this rank.
  __aicore__ inline int32_t sent_to(int32_t source, int32_t dest) const {
    return entries_for(source, dest, 0, route_.num_local_experts) + (source == dest ? padding(dest) : 0);
  }
  __aicore__ inline int32_t sent_to_expert(int32_t source, int32_t dest, int32_t expert) const {
    return entries_for(source, dest, expert, expert + 1) + (source == dest ? padding_of(expert) : 0);
  }
  // Rows that a relay passes on, of the ranks whose tokens it has.
  __aicore__ inline int32_t relayed(int32_t relay) const {
    const int32_t ep_size = image_->header().ep_size;
    const RouteWords over = image_->route(route_.over);
    const RouteTables came = image_->tables(route_.over, num_aiv_);
    int32_t rows = 0;
    for (int32_t source = 0; source < ep_size; ++source) {
      if (at(came.sent, source, came.width, relay) == at(came.sent, source, came.width, relay + 1)) continue;
      for (int32_t dest = 0; dest < ep_size; ++dest)
        if (image_->stop(over, source, dest) == relay) rows += entries_for(source, dest, 0, route_.num_local_experts);
    }
    return rows;
  }
  // Without the rows of zeros that count as sent to itself.
  __aicore__ inline int32_t entries_for(int32_t source, int32_t dest, int32_t first, int32_t last) const {
    const int32_t e = dest * route_.num_local_experts;
    return at(tables_.sent, source, tables_.width, e + last) - at(tables_.sent, source, tables_.width, e + first);
  }

  // Whether every entry of this rank's tokens is sent.
  __aicore__ inline bool keeps_all() const { return all_kept_entries(rank_, num_tokens_) == num_tokens_ * route_.top_k; }
  // Entries of this rank that are sent.
  __aicore__ inline int32_t all_kept_entries(int32_t, int32_t) const {
    return at(tables_.sent, rank_, tables_.width, route_.num_local_experts * image_->header().ep_size);
  }

  // Rows of zeros that fill up those of this rank's experts: they count as sent to itself.
  __aicore__ inline int32_t padding(int32_t) const {
    int32_t rows = 0;
    for (int32_t e = 0; e < route_.num_local_experts && route_.alignment > 1; ++e) rows += padding_of(e);
    return rows;
  }

  // Of one of them, what it has more than the entries of all ranks.
  __aicore__ inline int32_t padding_of(int32_t expert) const {
    if (route_.alignment == 1) return 0;
    const int32_t last = image_->header().ep_size - 1;
    return expert_rows(rank_, expert) - at(tables_.before, last, tables_.narrow, expert) -
           entries_for(last, rank_, expert, expert + 1);
  }

  // Slots of a rank up to the last that has rows.
  __aicore__ inline int32_t num_used_slots(int32_t rank) const {
    return at(tables_.slot_start, rank, tables_.narrow, route_.num_local_experts);
  }
  __aicore__ inline Unit slot(int32_t rank, int32_t index) const {
    if (rank == rank_) return own_slot(index);
    if (rank != slots_.rank || index < slots_.first || index >= slots_.end) find_slots(rank, index);
    int32_t place = slots_.own + index - slots_.first;
    if (place >= slots_.end - slots_.first) place -= slots_.end - slots_.first;
    const int32_t start = slots_.start + place * slots_.tile_rows;
    return {start, least(slots_.tile_rows, slots_.end_of_rows - start), slots_.expert};
  }

  // Rows in the slots of another rank before one that has some, if all of its expert are full.
  __aicore__ inline int32_t rows_before(int32_t rank, int32_t index) const {
    (void)slot(rank, index);
    return slots_.start + (index - slots_.first) * slots_.tile_rows;
  }

  // One of source and dest is this rank.
  __aicore__ inline Segment segment(int32_t source, int32_t dest, int32_t expert) const {
    const int32_t global_expert = dest * route_.num_local_experts + expert;
    return segment_behind(
        source, dest, expert,
        dest == rank_ ? at(tables_.before, source, tables_.narrow, expert) : words_.GetValue(tables_.ahead + global_expert));
  }
  // Of any two ranks, given how many rows of the expert come from ranks before the source.
  __aicore__ inline Segment segment_behind(int32_t source, int32_t dest, int32_t expert, int32_t before) const {
    const int32_t zeros = source == dest ? padding_of(expert) : 0;
    return {source,
            dest,
            expert,
            entries_for(source, dest, expert, expert + 1) + zeros,
            expert_start(dest, expert) + before,
            at(tables_.sent, source, tables_.width, dest * route_.num_local_experts + expert),
            zeros,
            expert_start(dest, expert + 1) - zeros};
  }
  __aicore__ inline Segment segment_in_slot(int32_t source, int32_t dest, const Unit& slot) const {
    return cut_to(slot, segment(source, dest, slot.expert));
  }
  __aicore__ inline static Segment cut_to(const Unit& slot, Segment part) {
    const int32_t end = slot.start + slot.rows, first = most(part.first_row, slot.start);
    const int32_t entries = most(least(part.first_row + part.num_entries(), end) - first, 0);
    const int32_t zeros_end = least(part.first_padding + part.padding, end);
    part.first_padding = most(part.first_padding, slot.start);
    part.padding = most(zeros_end - part.first_padding, 0);
    part.rows = entries + part.padding;
    part.first_entry += first - part.first_row;
    part.first_row = first;
    return part;
  }

  // The slot of a received row of one of this rank's experts.
  __aicore__ inline int32_t slot_of(int32_t expert, int32_t row) const {
    const int32_t first = at(tables_.slot_start, rank_, tables_.narrow, expert);
    const int32_t slots = at(tables_.slot_start, rank_, tables_.narrow, expert + 1) - first;
    const int32_t own = at(tables_.own_start, rank_, tables_.narrow, expert) / tile_rows_;
    return first + ((row - expert_start(rank_, expert)) / tile_rows_ + slots - own % slots) % slots;
  }
  // The row that this rank has received of a token of another one.
  __aicore__ inline int32_t row_of(int32_t source, const Fan& fan) const {
    return expert_start(rank_, fan.expert) + at(tables_.before, source, tables_.narrow, fan.expert) + fan.place;
  }

  // Experts without the room for copies; whether a local expert is a copy; how many there are of one of a rank's.
  __aicore__ inline int32_t num_own_experts() const { return num_own_; }
  __aicore__ inline int32_t num_local_experts() const { return route_.num_local_experts; }
  __aicore__ inline int32_t return_tokens() const { return route_.return_tokens; }
  __aicore__ inline Share share(int32_t rank, int32_t expert) const {
    return image_->share(route_.first_share + rank * route_.num_local_experts + expert);
  }
  __aicore__ inline bool is_copy(int32_t rank, int32_t expert) const {
    return expert >= num_own_ && expert < route_.num_local_experts && share(rank, expert).expert >= 0;
  }
  // The copies of a rank's experts, in the order of their hosts: the first one, and the one after another.
  __aicore__ inline Copy first_copy(int32_t rank) const { return copy_from(rank, 0, 0); }
  __aicore__ inline Copy next_copy(int32_t rank, const Copy& copy) const {
    return copy_from(rank, copy.host, copy.slot + 1);
  }
  __aicore__ inline Copy copy(int32_t rank, int32_t number) const {
    Copy copy = first_copy(rank);
    for (int32_t i = 0; i < number && copy.host >= 0; ++i) copy = next_copy(rank, copy);
    return copy;
  }
  // Where among its owner's copies the one in a slot of a rank stands.
  __aicore__ inline int32_t place_of_copy(int32_t rank, int32_t slot) const {
    const int32_t owner = share(rank, num_own_ + slot).expert / num_own_;
    int32_t place = 0;
    for (Copy copy = first_copy(owner); copy.host != rank || copy.slot != slot; copy = next_copy(owner, copy)) ++place;
    return place;
  }
  __aicore__ inline int32_t num_copies(int32_t rank, int32_t expert) const {
    int32_t count = 0;
    for (Copy copy = first_copy(rank); copy.host >= 0; copy = next_copy(rank, copy)) count += copy.expert == expert ? 1 : 0;
    return count;
  }

 private:
  // An expert of a rank, whose slots are first .. end - 1 and begin with the one that is `own` slots behind its first rows;
  // or what lies behind all of them, of no rows.
  struct Slots {
    int32_t rank, first, end, own, start, end_of_rows, tile_rows, expert;
  };

  // Of this rank: a table says it, whose next line is on its way to the cache when this one is read.
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

  // Neighbours ask for slots of the same expert, so what was found last is kept.
  __aicore__ inline void find_slots(int32_t rank, int32_t index) const {
    const int32_t last = route_.num_local_experts;
    int32_t e = 0, high = last;
    while (e < high) {
      const int32_t middle = (e + high) / 2;
      if (at(tables_.slot_start, rank, tables_.narrow, middle + 1) <= index) {
        e = middle + 1;
      } else {
        high = middle;
      }
    }
    const int32_t first = at(tables_.slot_start, rank, tables_.narrow, e), start = expert_start(rank, e);
    if (e == last) {
      slots_ = {rank, first, kMostSlots, 0, start, start, 0, last - 1};
      return;
    }
    const int32_t end = at(tables_.slot_start, rank, tables_.narrow, e + 1);
    const int32_t own = at(tables_.own_start, rank, tables_.narrow, e) / tile_rows_ % (end - first);
    slots_ = {rank, first, end, own, start, expert_start(rank, e + 1), tile_rows_, e};
  }
  __aicore__ inline Copy copy_from(int32_t rank, int32_t host, int32_t slot) const {
    for (; host < image_->header().ep_size; ++host, slot = 0) {
      for (; num_own_ + slot < route_.num_local_experts; ++slot) {
        const int32_t expert = share(host, num_own_ + slot).expert;
        if (expert >= 0 && expert / num_own_ == rank) return {expert % num_own_, host, slot};
      }
    }
    return {-1, -1, -1};
  }
  __aicore__ inline int32_t at(int32_t table, int32_t row, int32_t width, int32_t i) const {
    return words_.GetValue(table + row * width + i);
  }

  static constexpr int32_t kMostSlots = 0x7FFFFFFF;

  RouteWords route_;
  RouteTables tables_;
  mutable Slots slots_{-1, 0, 0, 0, 0, 0, 0, 0};
  mutable Unit own_slot_{0, 0, 0};
  mutable int32_t num_used_ = -1, own_index_ = -1, own_line_ = -1;
  uint64_t address_ = 0;
  AscendC::GlobalTensor<int32_t> words_;
  const ImageReader* image_ = nullptr;
  int32_t num_aiv_ = 0, tile_rows_ = 0, rank_ = 0, num_tokens_ = 0, num_own_ = 0;
};

}  // namespace hpmoe

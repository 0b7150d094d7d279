// The segments of a transfer's task, also for relays: the lists of the rows of their tokens, and the rows themselves.
#pragma once

#include "frame.h"

namespace hpmoe {

// Row numbers on the side of the tokens, one for each row of a segment, relative to a row of that side.
struct EntryList {
  uint64_t address;
  int32_t first_row;
};

// Iterates over segments; some may have no rows. A relay has, for each rank, the rows of the tokens that it forwards
// there, from route.relayed of tables.h.
class TaskSegments {
 public:
  __aicore__ inline explicit TaskSegments(const Frame& frame) : frame_(frame), is_relayed_(is_relayed(frame.op)) {
    if (!is_relayed_) return;
    const RankView& rank = *frame.rank;
    relays_.init(rank.image, frame.routing.route().over, rank.num_aiv, rank.args);
    source_ = rank.ep_size();
  }

  __aicore__ inline bool next() {
    if (!is_relayed_) {
      if (++number_ == num_segments(frame_)) return false;
      segment_ = segment_at(frame_, number_);
      return true;
    }
    while (true) {
      ++source_;
      while (source_ >= frame_.rank->ep_size())
        if (!next_rank()) return false;
      if (find_segment()) return true;
    }
  }
  __aicore__ inline const Segment& segment() const { return segment_; }
  __aicore__ inline EntryList list() const {
    const int32_t table = is_relayed_ ? relays_.tables().relayed : frame_.routing.tables().entries;
    const uint64_t tables = address_on(frame_.rank->args.tables, is_relayed_ ? source_ : segment_.source);
    return {tables + static_cast<uint64_t>(table + segment_.first_entry) * sizeof(int32_t), is_relayed_ ? first_row_ : 0};
  }

 private:
  // Advances to the next rank that the task is for.
  __aicore__ inline bool next_rank() {
    if (++number_ == num_task_peers(frame_.op, frame_.task, frame_.rank->ep_size())) return false;
    const int32_t me = frame_.rank->me();
    const bool back = goes_back(frame_.op);
    const int32_t peer = frame_.rank->peer(position_of(frame_.op, frame_.task, number_), back);
    relay_ = back ? peer : me;
    dest_ = back ? me : peer;
    slot_ = frame_.routing.slot(dest_, frame_.task.row);
    source_ = 0;
    before_ = 0;
    counted_ = 0;
    first_row_ = 0;
    came_ = 0;
    return true;
  }
  // Returns false if the relay has no rows of the source, or if another relay forwards them to the rank.
  __aicore__ inline bool find_segment() {
    first_row_ += came_;
    came_ = relays_.entries_for(source_, relay_, 0, 1);
    if (came_ == 0 || relays_.stop(source_, dest_) != relay_) return false;
    for (; counted_ < source_; ++counted_)
      before_ += frame_.routing.entries_for(counted_, dest_, slot_.expert, slot_.expert + 1);
    const int32_t first_row = frame_.routing.expert_start(dest_, slot_.expert) + before_;
    segment_ = cut_to(slot_, frame_.routing.segment_from(source_, dest_, slot_.expert, first_row));
    segment_.source = relay_;
    segment_.of_source = source_;
    return true;
  }

  const Frame& frame_;
  const bool is_relayed_;
  RoutingTables relays_;
  Segment segment_{0, 0, 0, 0, 0, 0};
  Unit slot_{0, 0, 0};
  int32_t number_ = -1, source_ = 0, relay_ = 0, dest_ = 0, before_ = 0, counted_ = 0;
  int32_t first_row_ = 0, came_ = 0;  // the relay's first row of the source, and the number of rows
};

}  // namespace hpmoe

// Questions about the routing, answered from the tables that the prologue filled: the device's cpu/routing.h.
#pragma once

#include "image_reader.h"

namespace hpmoe {

// Rows [start, start + rows) and the local expert they belong to.
struct Unit {
  int32_t start, rows, expert;
};

// The rows that one rank sends to one local expert of another, cut to a slot. Entries begin at first_entry of the source's.
struct Segment {
  int32_t source, dest, expert, rows, first_row, first_entry;
};

class RoutingTables {
 public:
  __aicore__ inline void init(const ImageReader& image, int32_t route, int32_t num_aiv, uint64_t tables, int32_t rank) {
    route_ = image.route(route);
    tables_ = image.tables(route, num_aiv);
    words_ = global_at<int32_t>(tables);
    tile_rows_ = image.header().tile_rows;
    rank_ = rank;
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
  __aicore__ inline int32_t sent_to_experts(int32_t source, int32_t dest, int32_t first, int32_t last) const {
    const int32_t e = dest * route_.num_local_experts;
    return at(tables_.sent, source, tables_.width, e + last) - at(tables_.sent, source, tables_.width, e + first);
  }
  __aicore__ inline int32_t sent_to(int32_t source, int32_t dest) const {
    return sent_to_experts(source, dest, 0, route_.num_local_experts);
  }

  __aicore__ inline Unit slot(int32_t rank, int32_t index) const {
    const int32_t last = route_.num_local_experts;
    int32_t e = 0;
    while (e < last && at(tables_.slot_start, rank, tables_.narrow, e + 1) <= index) ++e;
    if (e == last) return {received(rank), 0, last - 1};
    const int32_t first = at(tables_.slot_start, rank, tables_.narrow, e);
    const int32_t slots = at(tables_.slot_start, rank, tables_.narrow, e + 1) - first;
    const int32_t own = at(tables_.own_start, rank, tables_.narrow, e) / tile_rows_;
    const int32_t start = expert_start(rank, e) + (own + index - first) % slots * tile_rows_;
    return {start, least(tile_rows_, expert_start(rank, e + 1) - start), e};
  }

  // One of source and dest is this rank.
  __aicore__ inline Segment segment(int32_t source, int32_t dest, int32_t expert) const {
    const int32_t global_expert = dest * route_.num_local_experts + expert;
    const int32_t before = dest == rank_ ? at(tables_.before, source, tables_.narrow, expert)
                                         : words_.GetValue(tables_.ahead + global_expert);
    return {source, dest, expert, sent_to_experts(source, dest, expert, expert + 1), expert_start(dest, expert) + before,
            at(tables_.sent, source, tables_.width, global_expert)};
  }
  __aicore__ inline Segment segment_in_slot(int32_t source, int32_t dest, const Unit& slot) const {
    Segment part = segment(source, dest, slot.expert);
    const int32_t first = most(part.first_row, slot.start);
    const int32_t last = least(part.first_row + part.rows, slot.start + slot.rows);
    part.rows = most(last - first, 0);
    part.first_entry += first - part.first_row;
    part.first_row = first;
    return part;
  }

 private:
  __aicore__ inline int32_t at(int32_t table, int32_t row, int32_t width, int32_t i) const {
    return words_.GetValue(table + row * width + i);
  }

  RouteWords route_;
  RouteTables tables_;
  AscendC::GlobalTensor<int32_t> words_;
  int32_t tile_rows_ = 0, rank_ = 0;
};

}  // namespace hpmoe

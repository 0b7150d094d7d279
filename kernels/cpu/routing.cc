#include "routing.h"

#include <algorithm>

namespace hpmoe {

Routing::Routing(const Route& route, int32_t ep_size, int32_t tile_rows)
    : route_(route), ep_size_(ep_size), tile_rows_(tile_rows), ranks_(ep_size) {
  for (RankRoute& rank : ranks_) {
    rank.sent_start.resize(static_cast<size_t>(route.num_experts) + 1);
    rank.sent_entries.resize(static_cast<size_t>(route.num_tokens) * route.top_k);
    rank.source_start.resize(static_cast<size_t>(route.num_experts) + 1);
    rank.slots.resize(route.num_slots);
  }
}

Code Routing::sort_entries(int32_t rank, const int32_t* topk_ids, int64_t num_tokens, int64_t* value, int64_t* limit) {
  RankRoute& mine = ranks_[rank];
  const int64_t num_entries = num_tokens * route_.top_k;
  for (int64_t i = 0; i < num_entries; ++i) {
    if (topk_ids[i] < 0 || topk_ids[i] >= route_.num_experts) {
      *value = topk_ids[i];
      *limit = route_.num_experts;
      return Code::INDEX_OUT_OF_RANGE;
    }
    ++mine.sent_start[topk_ids[i] + 1];
  }
  for (int32_t e = 0; e < route_.num_experts; ++e) mine.sent_start[e + 1] += mine.sent_start[e];
  std::vector<int32_t> next(mine.sent_start);
  for (int64_t i = 0; i < num_entries; ++i) mine.sent_entries[next[topk_ids[i]]++] = static_cast<int32_t>(i);
  return Code::OK;
}

Code Routing::place_rows(int32_t rank, int64_t* value, int64_t* limit) {
  RankRoute& mine = ranks_[rank];
  int64_t row = 0;
  int32_t used = 0;
  int64_t needed = 0;
  for (int32_t e = 0; e < route_.num_local_experts; ++e) {
    const int64_t first = row;
    for (int32_t source = 0; source < ep_size_; ++source) {
      mine.source_start[static_cast<size_t>(e) * ep_size_ + source] = static_cast<int32_t>(row);
      row += sent_to_expert(source, rank, e);
    }
    needed += ceil_div(row - first, tile_rows_);
    for (int64_t start = first; start < row && used < route_.num_slots; start += tile_rows_) {
      const auto rows = static_cast<int32_t>(std::min<int64_t>(tile_rows_, row - start));
      mine.slots[used++] = {e, static_cast<int32_t>(start), rows};
    }
  }
  mine.source_start.back() = static_cast<int32_t>(row);
  for (; used < route_.num_slots; ++used)
    mine.slots[used] = {route_.num_local_experts - 1, static_cast<int32_t>(row), 0};
  const int64_t capacity = route_capacity(route_, tile_rows_);
  const bool too_many_slots = needed > route_.num_slots;
  if (!too_many_slots && row <= capacity) return Code::OK;
  *value = too_many_slots ? needed : row;
  *limit = too_many_slots ? route_.num_slots : capacity;
  return Code::SLOT_OVERFLOW;
}

int64_t Routing::sent_to_expert(int32_t source, int32_t dest, int32_t expert) const {
  const int32_t e = dest * route_.num_local_experts + expert;
  return ranks_[source].sent_start[e + 1] - ranks_[source].sent_start[e];
}

int64_t Routing::sent_to(int32_t source, int32_t dest) const {
  const int32_t first = dest * route_.num_local_experts;
  return ranks_[source].sent_start[first + route_.num_local_experts] - ranks_[source].sent_start[first];
}

Segment Routing::segment(int32_t source, int32_t dest, int32_t expert) const {
  const int32_t e = dest * route_.num_local_experts + expert;
  const int32_t* entries = ranks_[source].sent_entries.data() + ranks_[source].sent_start[e];
  return {source, dest, expert, sent_to_expert(source, dest, expert), source_start(dest, expert, source), entries};
}

Segment Routing::segment_in_slot(int32_t source, int32_t dest, const Slot& slot) const {
  Segment part = segment(source, dest, slot.expert);
  const int64_t first = std::max<int64_t>(part.first_row, slot.start);
  const int64_t last = std::min<int64_t>(part.first_row + part.rows, slot.start + slot.rows);
  part.rows = std::max<int64_t>(last - first, 0);
  if (part.rows == 0) return part;
  part.entries += first - part.first_row;
  part.first_row = first;
  return part;
}

}  // namespace hpmoe

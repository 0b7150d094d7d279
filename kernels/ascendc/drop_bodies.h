// Bodies for dropped entries: KEEP writes zeros for them, DROP_COUNTS counts them.
#pragma once

#include "transfer_body.h"

namespace hpmoe {

// Address of the local experts of this rank's entries from a token on; a negative number marks a dropped entry.
__aicore__ inline uint64_t chosen_from(const Frame& frame, int32_t token) {
  const int32_t entry = frame.routing.tables().chosen + token * frame.routing.route().top_k;
  return frame.rank->args.tables + static_cast<uint64_t>(entry) * sizeof(int32_t);
}

// Computes out[t, k] = in[t * K + k], and 0 for a dropped entry, for which no row came back.
__aicore__ inline void keep(VectorUnit& unit, const Frame& frame) {
  const int32_t top_k = frame.routing.route().top_k, size = element_bytes(frame.buffer(0).dtype);
  const int32_t count = frame.unit.rows * top_k;
  const bool keeps_all = frame.routing.keeps_all();
  const uint64_t start = static_cast<uint64_t>(frame.unit.start) * top_k * size;
  const uint64_t to = frame.base(0) + start, from = frame.base(1) + start, chosen = chosen_from(frame, frame.unit.start);
  for (int32_t first = 0; first < count; first += kMaxEntries) {
    const int32_t entries = least(kMaxEntries, count - first);
    Bytes buffer = unit.passing.AllocTensor<uint8_t>();
    unit.copy_in(buffer, from + static_cast<uint64_t>(first) * size, 1, entries * size, 0, 0);
    AscendC::LocalTensor<int32_t> kept;
    if (!keeps_all) kept = unit.read_entries(chosen + first * sizeof(int32_t), entries);
    for (int32_t i = 0; i < entries && !keeps_all; ++i) {
      if (kept.GetValue(i) >= 0) continue;
      if (size == 4) {
        buffer.ReinterpretCast<int32_t>().SetValue(i, 0);
      } else {
        buffer.ReinterpretCast<int16_t>().SetValue(i, 0);
      }
    }
    unit.release_to_copies();
    unit.passing.EnQue(buffer);
    buffer = unit.passing.DeQue<uint8_t>();
    unit.copy_out(to + static_cast<uint64_t>(first) * size, buffer, 1, entries * size, 0, 0);
    unit.passing.FreeTensor(buffer);
  }
}

// Computes out[e] = entries of this rank that expert e had no capacity for; all shards of an expert have the count of the
// first.
__aicore__ inline void drop_counts(VectorUnit& unit, const Frame& frame) {
  const RoutingTables& routing = frame.routing;
  const int64_t width = static_cast<int64_t>(routing.num_own_experts()) * sizeof(int32_t);
  const RowPlaces from{frame.rank->args.tables + static_cast<uint64_t>(routing.tables().dropped) * sizeof(int32_t),
                       routing.route().tp_size * width, false, 1, 0};
  const RowPlaces to{frame.base(0), width, false, 1, 0};
  pass_rows(unit, {}, frame.rank->ep_size() / routing.route().tp_size, static_cast<int32_t>(width), from, to);
}

}  // namespace hpmoe

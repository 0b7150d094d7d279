// What entries that are not kept leave: zeros where they have a value of their own, and the counts of the dropped ones.
#pragma once

#include "transfer_body.h"

namespace hpmoe {

// Where this rank's table says which local expert each entry from a token on has, or a number below 0.
__aicore__ inline uint64_t chosen_from(const Frame& frame, int32_t token) {
  const int32_t entry = frame.routing.tables().chosen + token * frame.routing.route().top_k;
  return frame.rank->args.tables + static_cast<uint64_t>(entry) * sizeof(int32_t);
}

// out[t, k] = in[t * K + k], zero where the entry is not kept: nothing was sent back for it.
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

// out[e] = entries of this rank that expert e had no capacity for: those of its first shard.
__aicore__ inline void drop_counts(VectorUnit& unit, const Frame& frame) {
  const RoutingTables& routing = frame.routing;
  const int64_t width = static_cast<int64_t>(routing.num_own_experts()) * sizeof(int32_t);
  const RowPlaces from{frame.rank->args.tables + static_cast<uint64_t>(routing.tables().dropped) * sizeof(int32_t),
                       routing.route().tp_size * width, false, 1, 0};
  const RowPlaces to{frame.base(0), width, false, 1, 0};
  pass_rows(unit, {}, frame.rank->ep_size() / routing.route().tp_size, static_cast<int32_t>(width), from, to);
}

}  // namespace hpmoe

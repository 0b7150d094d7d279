// Checks the rows of a routing against the capacity of each expert and of the arrays of each rank.
#pragma once

#include "core/shards.h"

namespace hpmoe {

template <class Route>
HPMOE_DEVICE inline int64_t max_rows_of(const Route& route, int32_t tile_rows) {
  return route.max_rows > 0 ? route.max_rows : int64_t{route.num_slots} * tile_rows;
}

// Checks the rows and slots that a rank receives.
template <class Route>
HPMOE_DEVICE inline Code check_received(const Route& route, int32_t tile_rows, int64_t rows, int64_t num_slots,
                                        Status& status) {
  const int64_t most = max_rows_of(route, tile_rows);
  if (rows <= most) return num_slots <= route.num_slots ? Code::OK : Code::BAD_IMAGE;
  status.value = rows;
  status.threshold = most;
  return Code::SLOT_OVERFLOW;
}

// Checks entries(e) of each expert against its capacity; reports the first of the fullest experts.
template <class Entries>
HPMOE_DEVICE inline Code check_capacity(const Entries& entries, const Shards& shards, int64_t capacity, Status& status) {
  int64_t most_entries = capacity;
  int32_t fullest = -1;
  for (int32_t e = 0; e < shards.num_experts; ++e) {
    const int64_t count = entries(e);
    if (count <= most_entries) continue;
    most_entries = count;
    fullest = e;
  }
  if (fullest < 0) return Code::OK;
  status.wait = shards.expert_of(fullest);
  status.value = most_entries;
  status.threshold = capacity;
  return Code::OVER_CAPACITY;
}

}  // namespace hpmoe

// The slots of a local expert's received rows.
#pragma once

#include "core/numbers.h"
#include "core/units.h"

namespace hpmoe {

// Slots first .. first + count - 1, each of tile_rows rows but for the one that holds the expert's last rows. The rows begin
// at `start`. The first slot holds the rank's own first rows, which lie `own` slots behind `start`; the numbers go round.
struct ExpertSlots {
  int32_t expert, first, count, own, start, tile_rows;

  // The rows of a slot, given where the expert's rows end.
  HPMOE_DEVICE inline UnitOf<int32_t> unit(int32_t slot, int32_t end) const {
    int32_t place = own + slot - first;
    if (place >= count) place -= count;
    const int32_t row = start + place * tile_rows;
    return {row, least(tile_rows, end - row), expert};
  }

  // The slot of a received row.
  HPMOE_DEVICE inline int32_t slot_of(int32_t row) const { return slot_at((row - start) / tile_rows); }
  // The slot that holds the expert's last rows; the expert has some.
  HPMOE_DEVICE inline int32_t last() const { return slot_at(count - 1); }

  HPMOE_DEVICE inline int32_t slot_at(int32_t place) const { return first + place - own + (place < own ? count : 0); }
};

}  // namespace hpmoe

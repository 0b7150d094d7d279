// The row slots of a local expert's received rows.
#pragma once

#include "core/numbers.h"
#include "core/units.h"

namespace hpmoe {

// Slots first .. first + count - 1 have tile_rows rows each, except the one with the expert's last rows. The rows begin
// at `start`. Slot numbers wrap around: the first slot holds the rank's own first rows, which are `own` slots after
// `start`.
struct ExpertSlots {
  int32_t expert, first, count, own, start, tile_rows;

  // Returns the rows of a slot; `end` is the end of the expert's rows.
  HPMOE_DEVICE inline UnitOf<int32_t> unit(int32_t slot, int32_t end) const {
    int32_t place = own + slot - first;
    if (place >= count) place -= count;
    const int32_t row = start + place * tile_rows;
    return {row, least(tile_rows, end - row), expert};
  }

  // Returns the slot of a received row.
  HPMOE_DEVICE inline int32_t slot_of(int32_t row) const { return slot_at((row - start) / tile_rows); }
  // Returns the slot that holds the expert's last rows; the expert must have rows.
  HPMOE_DEVICE inline int32_t last() const { return slot_at(count - 1); }

  HPMOE_DEVICE inline int32_t slot_at(int32_t place) const { return first + place - own + (place < own ? count : 0); }
};

}  // namespace hpmoe

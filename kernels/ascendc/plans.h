// Several plans of one program in one image; a launch runs one of them. This file locates the parts of each plan. All
// plans share the memory of buffers, counters, targets and routing tables. All ranks select the same plan, so the value
// of an event's counter is the sum of its thresholds over launches, each of the plan of that launch.
#pragma once

#include "core/decode.h"

namespace hpmoe {

// Offsets of a plan: of its image, in bytes, and of its part of the table of buffers and capacities.
struct PlanPlace {
  int32_t number, first_byte, first_word;

  HPMOE_DEVICE PlanPlace behind(const Header& of_this) const {
    return {number + 1, first_byte + of_this.image_bytes, first_word + of_this.num_buffers + of_this.num_routes};
  }
};

}  // namespace hpmoe

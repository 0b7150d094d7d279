// Several plans of one program, of which a launch takes one: where what each has of its own lies behind that of those before
// it. Buffers are the same memory for all of them, and so are counters, targets and routing tables: as all ranks take the
// same plan, what an event's counter has reached is the sum of its thresholds, each of the plan that was taken then.
#pragma once

#include "core/decode.h"

namespace hpmoe {

// Where an image begins, in bytes, and its part of the table of buffers and capacities.
struct PlanPlace {
  int32_t number, first_byte, first_word;

  HPMOE_DEVICE PlanPlace behind(const Header& of_this) const {
    return {number + 1, first_byte + of_this.image_bytes, first_word + of_this.num_buffers + of_this.num_routes};
  }
};

}  // namespace hpmoe

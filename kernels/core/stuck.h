// Finds why a launch got stuck: among all unmet waits, the one that no remaining task would have met.
#pragma once

#include <cstdint>
#include <vector>

#include "core/image.h"

namespace hpmoe {

// The position of a worker when it left: its next task, and the wait it was in (event -1: no wait).
struct Stand {
  int32_t rank, queue, next_task;
  Status wait;
};

// Returns the wait that lost its signal, or `first` if no wait stands out, as in a cycle.
Status find_lost_signal(const Image& image, const std::vector<Stand>& stands, const Status& first);

}  // namespace hpmoe

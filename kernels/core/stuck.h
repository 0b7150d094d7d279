// Why a launch got stuck: of all waits that never ended, the one that no task left to run would have ended.
#pragma once

#include <cstdint>
#include <vector>

#include "core/image.h"

namespace hpmoe {

// Where a worker stood when it left: its next task, and the wait it was in (event -1: in none).
struct Stand {
  int32_t rank, queue, next_task;
  Status wait;
};

// The wait that lost its signal, or `first` where none stands out, as on a cycle.
Status find_lost_signal(const Image& image, const std::vector<Stand>& stands, const Status& first);

}  // namespace hpmoe

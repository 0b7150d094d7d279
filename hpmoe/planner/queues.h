#pragma once

#include <cstdint>

#include "planner.h"

namespace hpmoe {

// See planner.h. Throw BadTable or std::bad_alloc.
void deal(const HpmoeFlow& flow, const int32_t* sequence, const HpmoeDealt* of_op, int64_t num_ops, int32_t* queue,
          int32_t num_queues, int32_t* queue_starts, int32_t* queue_tasks);
bool are_queues(const HpmoeFlow& flow, const uint8_t* unit_of_op, int64_t num_ops, const uint8_t* units_of_queue);

}  // namespace hpmoe

#pragma once

#include <cstdint>

namespace hpmoe {

// See planner.h; returns how many rows are left. Throws BadTable or std::bad_alloc.
int64_t sort_by_task(const int32_t* rows, int64_t num_rows, int32_t width, int64_t num_tasks, bool unique, int32_t* sorted);

}  // namespace hpmoe

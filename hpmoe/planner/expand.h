#pragma once

#include <cstdint>
#include <vector>

#include "planner.h"

namespace hpmoe {

// See planner.h; return how many rows are left. Throw BadTable or std::bad_alloc.
int64_t expand_waits(const HpmoeGrid* grids, int64_t num_ops, const HpmoeRule* rules, int64_t num_rules, HpmoeWait* rows,
                     int64_t capacity);
int64_t expand_signals(const HpmoeGrid* grids, int64_t num_ops, const HpmoeRule* rules, int64_t num_rules, HpmoeSignal* rows,
                       int64_t capacity);

}  // namespace hpmoe

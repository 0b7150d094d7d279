#pragma once

#include <cstdint>

#include "planner.h"

namespace hpmoe {

// See planner.h; return how many rows are left. Throw BadTable.
int64_t renumber_waits(const HpmoeWait* rows, int64_t num_rows, const uint8_t* is_kept, const int32_t* number,
                       int64_t num_events, HpmoeWait* out);
int64_t renumber_signals(const HpmoeSignal* rows, int64_t num_rows, const int32_t* number, int64_t num_events,
                         HpmoeSignal* out);

}  // namespace hpmoe

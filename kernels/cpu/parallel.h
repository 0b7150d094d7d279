// Work of a single call, outside of launches, on all cores.
#pragma once

#include "core/radix_sort.h"

namespace hpmoe {

// So many parts, on as many threads as there are cores, which the thread pool keeps.
Parts on_all_cores(int32_t count);

// Enough parts for all cores, each of at least `grain` of n items; one where there is little to do.
Parts parts_for(int64_t n, int64_t grain);

}  // namespace hpmoe

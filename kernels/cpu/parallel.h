// Parallel work of a single call, outside of launches.
#pragma once

#include "core/radix_sort.h"

namespace hpmoe {

// Returns Parts that run `count` parts on as many threads as there are cores; the thread pool keeps the threads.
Parts on_all_cores(int32_t count);

// Returns Parts for n items: enough for all cores, each of at least `grain` items.
Parts parts_for(int64_t n, int64_t grain);

}  // namespace hpmoe

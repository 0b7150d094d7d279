// A stable sort of entries by whole numbers, 8 bits at a time. Ids count experts rank by rank and ranks node by node: of up
// to 256 experts one level sorts by all of that, of more the first level is by node and rank, the second one by expert.
#pragma once

#include <cstdint>
#include <functional>

namespace hpmoe {

// Work in parts: run(job) returns when job(part) is done for the parts 0 to count - 1, in any order, on any threads.
struct Parts {
  int32_t count;
  std::function<void(const std::function<void(int32_t)>&)> run;
};

// All in one part, on the calling thread.
Parts undivided();

// Sorts n entries by their keys, of equal ones the first first. order[i] is the entry that comes i-th, place[entry] where it
// comes; either may be NULL. `scratch` is room for n more, or NULL. Throws std::bad_alloc. Time is linear in n for each 8
// bits in which keys differ.
void sort_stably(const int32_t* keys, int64_t n, int32_t* order, int32_t* place, const Parts& parts,
                 int32_t* scratch = nullptr);

}  // namespace hpmoe

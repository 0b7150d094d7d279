// A stable sort of entries by integer keys, 8 bits at a time. Expert ids count rank by rank and node by node, so up to
// 256 experts need one level; for more, the first level sorts by node and rank and the second by expert.
#pragma once

#include <cstdint>
#include <functional>

namespace hpmoe {

// Parallel work: run(job) returns when job(part) is done for parts 0 to count - 1, in any order, on any threads.
struct Parts {
  int32_t count;
  std::function<void(const std::function<void(int32_t)>&)> run;
};

// Returns one part, on the calling thread.
Parts undivided();

// Sorts n entries by their keys, stably. order[i] is the i-th entry, place[entry] its position; either may be NULL.
// `scratch` is memory for n more, or NULL. Throws std::bad_alloc. Time is linear in n for each 8 bits in which keys
// differ.
void sort_stably(const int32_t* keys, int64_t n, int32_t* order, int32_t* place, const Parts& parts,
                 int32_t* scratch = nullptr);

}  // namespace hpmoe

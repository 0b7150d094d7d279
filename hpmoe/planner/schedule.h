#pragma once

#include <cstdint>
#include <vector>

#include "graph.h"
#include "planner.h"

namespace hpmoe {

// Tasks queue by queue, and for each task how many began before it; -1 on a cycle.
struct Schedule {
  std::vector<std::vector<int32_t>> queues;
  std::vector<int32_t> sequence;
};

// The functions behind planner.h; they throw BadTable or std::bad_alloc.
Schedule schedule(const HpmoeFlow& flow, const Graph& graph, const double* costs, double seen_us, const int64_t* order,
                  const uint8_t* kind, const int32_t* kind_starts, int32_t num_kinds);
void find_runnable(const HpmoeFlow& flow, const Graph& graph, uint8_t* done);
void prune_waits(const HpmoeFlow& flow, const Graph& graph, const uint8_t* is_unit, uint8_t* needed);

}  // namespace hpmoe

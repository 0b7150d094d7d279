// What a task has to do, whenever it runs: where its rows go, how many a token stands for, how long its body takes.
#pragma once

#include <cmath>

#include "cpu/frame.h"
#include "simulate.h"

namespace hpmoe {

// Of tokens that came once, the rows that the rank's experts have of each in the mean; 0 where none did.
inline double rows_of_token(const Frame& frame) {
  const Routing* experts = frame.routing ? frame.routing->experts() : nullptr;
  const auto received = experts ? static_cast<double>(frame.routing->received(frame.rank)) : 0;
  return received > 0 ? static_cast<double>(experts->received(frame.rank)) / received : 0;
}

// Where the rows of a transfer go.
inline int32_t target_of(const Frame& frame, const Segment& segment) {
  return goes_back(frame.op) ? segment.source : segment.dest;
}

// Microseconds that a task of so many rows takes of its worker, when it has L2 and memory for itself.
inline double core_us(const HpmoeWork& work, double rows) {
  const auto granule = static_cast<double>(work.granule);
  const double granules = std::ceil(rows / granule) * granule;
  const bool is_few = work.few_rows > 0 && rows <= static_cast<double>(work.few_rows);
  return is_few ? work.few_fixed + granules * work.few_row : work.core_fixed + granules * work.core_row;
}

}  // namespace hpmoe

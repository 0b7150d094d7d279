// What a launch does for a task between its waits and its signals: tile bodies, a file for each family, and copies.
#pragma once

#include "core/generated/cpu_bodies.h"
#include "link/outbox.h"

namespace hpmoe {

// Runs the body of a task that is no transfer: OK, or INDEX_OUT_OF_RANGE for an index that points nowhere.
inline Code run_body(const Frame& frame) {
  const bool has_unit = frame.unit.rows > 0 || static_cast<Domain>(frame.op.domain) == Domain::EXPERTS;
  return has_unit ? call_body(frame) : Code::OK;
}

// Copies the rows of a segment, from source to dest or back; rows of a matrix always to dest. Returns the bytes copied.
int64_t copy_segment(const Frame& frame, const Segment& segment, bool is_away);
// The same for a rank of another machine: rows go to its outbox.
int64_t send_segment(const Frame& frame, const Segment& segment, Outbox& outbox);

// Bodies of integers, which those of their names hand over to.
bool is_of_integers(const Frame& frame);
Code map_integers(const Frame& frame);
Code row_reduce_integers(const Frame& frame, bool is_max);
Code col_sum_integers(const Frame& frame);

}  // namespace hpmoe

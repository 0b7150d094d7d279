// The work of a task between its waits and its signals: tile bodies, one file for each family, and copies of rows.
#pragma once

#include "core/generated/cpu_bodies.h"
#include "link/outbox.h"

namespace hpmoe {

// Runs the body of a task that is no transfer. Returns OK, or INDEX_OUT_OF_RANGE for an index outside its array.
inline Code run_body(const Frame& frame) {
  const bool has_unit = frame.unit.rows > 0 || static_cast<Domain>(frame.op.domain) == Domain::EXPERTS;
  return has_unit ? call_body(frame) : Code::OK;
}

// Copies the rows of a segment from source to dest, or back if not `is_away`; rows of a matrix always go to dest. Returns
// the number of bytes.
int64_t copy_segment(const Frame& frame, const Segment& segment, bool is_away);
// Sends the rows of a segment to the outbox of a rank on another host.
int64_t send_segment(const Frame& frame, const Segment& segment, Outbox& outbox);

// Bodies for integers; the bodies of the same names call these.
bool is_of_integers(const Frame& frame);
Code map_integers(const Frame& frame);
Code col_sum_integers(const Frame& frame);

}  // namespace hpmoe

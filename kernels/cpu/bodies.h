// What a launch does for a task between its waits and its signals: tile bodies, a file for each family, and copies.
#pragma once

#include "frame.h"
#include "link/outbox.h"

namespace hpmoe {

// Runs the body of a task that is no transfer: OK, or INDEX_OUT_OF_RANGE for an index that points nowhere.
Code run_body(const Frame& frame);

// Copies the rows of a segment, from source to dest or back; rows of a matrix always to dest. Returns the bytes copied.
int64_t copy_segment(const Frame& frame, const Segment& segment, bool is_away);
// The same for a rank of another machine: rows go to its outbox.
int64_t send_segment(const Frame& frame, const Segment& segment, Outbox& outbox);

Code gmm(const Frame& frame);
Code wgrad(const Frame& frame);
Code map(const Frame& frame);
Code swiglu(const Frame& frame);
Code swiglu_grad(const Frame& frame);
Code quantize(const Frame& frame);
Code dequantize(const Frame& frame);
Code reduce_quantized(const Frame& frame);
Code quantize_weight(const Frame& frame);
Code gmm_int8(const Frame& frame);
Code gmm_fp8(const Frame& frame);
Code gmm_widened(const Frame& frame);
Code widen_weight(const Frame& frame);
Code rescale(const Frame& frame);
Code reduce(const Frame& frame);
Code row_reduce(const Frame& frame);
Code row_dot(const Frame& frame);
Code col_sum(const Frame& frame);
Code gather(const Frame& frame);
Code pick(const Frame& frame);
Code place(const Frame& frame);
Code group_reduce(const Frame& frame);
Code fan_out(const Frame& frame);
Code fan_in(const Frame& frame);
Code relay_sum(const Frame& frame);
Code keep(const Frame& frame);
Code drop_counts(const Frame& frame);
Code top_k(const Frame& frame);
Code take_cols(const Frame& frame);
Code add_cols(const Frame& frame);
Code cumsum(const Frame& frame);
Code count_outside(const Frame& frame);
Code count_and_fill(const Frame& frame);
Code reduce_and_fill(const Frame& frame);
Code fill_outside(const Frame& frame);
Code draw(const Frame& frame);

// Bodies of integers, which those of their names hand over to.
bool is_of_integers(const Frame& frame);
Code map_integers(const Frame& frame);
Code row_reduce_integers(const Frame& frame, bool is_max);
Code col_sum_integers(const Frame& frame);

}  // namespace hpmoe

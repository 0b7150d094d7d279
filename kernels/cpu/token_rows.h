// Moves rows of tokens to places and back, outside of launches. place[t * top_k + k] is the row of choice k of token t,
// plus `start`. An entry whose row is outside 0..num_rows-1 moves no row, and contributes zero.
#pragma once

#include <cstdint>

#include "convert.h"

namespace hpmoe {

struct Places {
  const int32_t* place;
  int64_t num_entries, top_k, start, num_rows;

  int64_t num_tokens() const { return num_entries / top_k; }
  // Returns the row of an entry, or -1.
  int64_t row(int64_t entry) const {
    const int64_t at = place[entry] - start;
    return at >= 0 && at < num_rows ? at : -1;
  }
};

// Returns a row that two entries have, or -1. Sets is_taken[row] for rows that entries have.
int64_t find_repeated(const Places& places, uint8_t* is_taken);

// Sets out[row of (t, k)] = x[t], and all other rows to zero.
void spread_rows(const Places& places, const uint8_t* is_taken, const char* x, int64_t row_bytes, char* out);

// Sets out[t] = sum over k of weights[t, k] * rows[row of (t, k)], in the order of k, in float32, rounded once. NULL
// weights are 1. If `first` [num_tokens + 1] is not NULL, token t has the entries from first[t] to first[t + 1].
void collect_rows(const Places& places, const int64_t* first, int64_t num_tokens, const float* weights, Dtype dtype,
                  const char* rows, int64_t cols, char* out);

// Computes the gradients of collect_rows with weights: d_rows[row of (t, k)] = weights[t, k] * d_out[t], and d_weights[t,
// k] = the dot product of d_out[t] and rows[row of (t, k)]. All other rows and weights become zero.
void collect_rows_grad(const Places& places, const uint8_t* is_taken, const float* weights, Dtype dtype, const char* rows,
                       const char* d_out, int64_t cols, char* d_rows, float* d_weights);

// Copies bytes past the caches, on all cores; measures the bandwidth of moving rows.
void copy_streamed(const char* from, int64_t bytes, char* to);

}  // namespace hpmoe

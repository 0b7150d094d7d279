// Rows of tokens to places and back, outside of launches. place[t * top_k + k] is where choice k of token t lies, `start`
// higher than its row; rows outside 0..num_rows-1 are no rows: nothing goes there, and zero comes back.
#pragma once

#include <cstdint>

#include "convert.h"

namespace hpmoe {

struct Places {
  const int32_t* place;
  int64_t num_entries, top_k, start, num_rows;

  int64_t num_tokens() const { return num_entries / top_k; }
  // The row of an entry, or -1.
  int64_t row(int64_t entry) const {
    const int64_t at = place[entry] - start;
    return at >= 0 && at < num_rows ? at : -1;
  }
};

// A row that two entries have, or -1. `is_taken`, [num_rows], gets which rows an entry has.
int64_t find_repeated(const Places& places, uint8_t* is_taken);

// out[row of (t, k)] = x[t]; other rows are zero.
void spread_rows(const Places& places, const uint8_t* is_taken, const char* x, int64_t row_bytes, char* out);

// out[t] = sum over k of weights[t, k] * rows[row of (t, k)], in the order of k, in float32, rounded once. Without weights
// (NULL) they are 1. Where `first` is given, [num_tokens + 1], token t has the entries from first[t] to first[t + 1]
// instead.
void collect_rows(const Places& places, const int64_t* first, int64_t num_tokens, const float* weights, Dtype dtype,
                  const char* rows, int64_t cols, char* out);

// The gradients of collect_rows with weights: d_rows[row of (t, k)] = weights[t, k] * d_out[t], d_weights[t, k] = the dot
// product of d_out[t] and rows[row of (t, k)]; other rows and weights get zero.
void collect_rows_grad(const Places& places, const uint8_t* is_taken, const float* weights, Dtype dtype, const char* rows,
                       const char* d_out, int64_t cols, char* d_rows, float* d_weights);

// Copies so many bytes past the caches, on all cores: what moving rows is measured by.
void copy_streamed(const char* from, int64_t bytes, char* to);

}  // namespace hpmoe

// The C functions of abi.h that move rows of tokens outside of launches.
#include <exception>
#include <memory>

#include "core/abi.h"
#include "parallel.h"
#include "token_rows.h"

namespace {

hpmoe::Places places_of(const HpmoeRows& rows) {
  return {rows.place, rows.num_entries, rows.top_k, rows.start, rows.num_rows};
}

// Calls job(places, is_taken) unless two entries have the same row.
template <class Job>
int64_t with_distinct_rows(const HpmoeRows& rows, Job job) {
  try {
    const hpmoe::Places places = places_of(rows);
    const std::unique_ptr<uint8_t[]> is_taken(new uint8_t[places.num_rows]);
    const int64_t repeated = hpmoe::find_repeated(places, is_taken.get());
    if (repeated < 0) job(places, is_taken.get());
    return repeated + 1;
  } catch (const std::exception&) {
    return -1;
  }
}

}  // namespace

extern "C" {

int64_t hpmoe_sort(const int32_t* keys, int64_t n, int32_t* order, int32_t* place, int32_t* scratch) {
  try {
    hpmoe::sort_stably(keys, n, order, place, hpmoe::parts_for(n, 1 << 14), scratch);
    return 0;
  } catch (const std::exception&) {
    return -1;
  }
}

int64_t hpmoe_spread_rows(const HpmoeRows* rows, const void* x, int64_t row_bytes, void* out) {
  return with_distinct_rows(*rows, [&](const hpmoe::Places& places, const uint8_t* is_taken) {
    hpmoe::spread_rows(places, is_taken, static_cast<const char*>(x), row_bytes, static_cast<char*>(out));
  });
}

int64_t hpmoe_collect_rows(const HpmoeRows* rows, const int64_t* first, int64_t num_tokens, const float* weights,
                           int32_t dtype, const void* from, int64_t cols, void* out) {
  try {
    hpmoe::collect_rows(places_of(*rows), first, num_tokens, weights, static_cast<hpmoe::Dtype>(dtype),
                        static_cast<const char*>(from), cols, static_cast<char*>(out));
    return 0;
  } catch (const std::exception&) {
    return -1;
  }
}

int64_t hpmoe_collect_rows_grad(const HpmoeRows* rows, const float* weights, int32_t dtype, const void* from,
                                const void* d_out, int64_t cols, void* d_from, float* d_weights) {
  return with_distinct_rows(*rows, [&](const hpmoe::Places& places, const uint8_t* is_taken) {
    hpmoe::collect_rows_grad(places, is_taken, weights, static_cast<hpmoe::Dtype>(dtype), static_cast<const char*>(from),
                             static_cast<const char*>(d_out), cols, static_cast<char*>(d_from), d_weights);
  });
}

void hpmoe_copy_streamed(const void* from, int64_t bytes, void* to) {
  hpmoe::copy_streamed(static_cast<const char*>(from), bytes, static_cast<char*>(to));
}

}  // extern "C"

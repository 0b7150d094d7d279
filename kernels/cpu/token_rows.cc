#include "token_rows.h"

#include <algorithm>
#include <cstring>

#include "bits.h"
#include "lanes.h"
#include "parallel.h"
#include "row_parts.h"
#include "row_writer.h"

namespace hpmoe {
namespace {

constexpr int64_t kStreamed = int64_t{16} << 20;  // bytes of a result that does not stay in the caches
constexpr int64_t kGrain = int64_t{256} << 10;    // bytes that are worth another thread
constexpr int64_t kPage = 4096;
static_assert(kBlock % kLanes == 0, "the next block begins at lane 0");

// Returns a writer that streams if the result exceeds the caches.
RowWriter writer_of(int64_t bytes) { return RowWriter(bytes >= kStreamed); }

// Calls job(first, last) for consecutive ranges of n items, in parallel; item_bytes is the number of bytes that an item
// moves.
template <class Job>
void divided(int64_t n, int64_t item_bytes, Job job) {
  const Parts parts = parts_for(n, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, item_bytes)));
  parts.run([&](int32_t part) { job(n * part / parts.count, n * (part + 1) / parts.count); });
}

// Calls visit(row, col, n) for blocks of columns of rows first to last - 1.
template <class Visit>
void for_each_block(int64_t first, int64_t last, int64_t cols, Visit visit) {
  for (int64_t row = first; row < last; ++row) {
    for (int64_t col = 0; col < cols; col += kBlock) visit(row, col, std::min(kBlock, cols - col));
  }
}

void zero_rows(const uint8_t* is_taken, int64_t num_rows, int64_t row_bytes, char* out) {
  for (int64_t row = 0; row < num_rows; ++row) {
    if (!is_taken[row]) std::memset(out + row * row_bytes, 0, row_bytes);
  }
}

using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));
using Bits = uint32_t __attribute__((vector_size(kLanes * sizeof(uint32_t))));
using Halves = uint16_t __attribute__((vector_size(kLanes * sizeof(uint16_t))));

struct OfFloat32 {
  using Element = float;
  static HPMOE_INLINE void load(const float* from, Lanes& to) { std::memcpy(&to, from, sizeof to); }
  static HPMOE_INLINE float one(float x) { return x; }
};

struct OfBfloat16 {
  using Element = uint16_t;
  static HPMOE_INLINE void load(const uint16_t* from, Lanes& to) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    const Bits bits = __builtin_convertvector(halves, Bits) << 16;
    std::memcpy(&to, &bits, sizeof to);
  }
  static HPMOE_INLINE float one(uint16_t x) { return bits_as<float>(uint32_t{x} << 16); }
};

// Adds the weighted rows of a part to `sum`, one after another. `rows` are their addresses. All rows are read in step, so
// that more loads are in flight than the hardware prefetcher starts for one row. The hardware prefetcher restarts at each
// page; for rows shorter than a page this function prefetches the rows of `ahead`, 128 bytes at a time, because lines are
// fetched in pairs.
template <class Of>
HPMOE_INLINE void add_rows(const Part& part, const void* const* rows, const Part& ahead, float* sum) {
  using Element = typename Of::Element;
  constexpr int64_t kStep = 128 / sizeof(Element), kVectors = kStep / kLanes;
  const int64_t n = part.num_cols, fetched = n * int64_t{sizeof(Element)} < kPage ? std::min(n, ahead.num_cols) : 0;
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    Lanes sums[kVectors], x;
    for (int64_t v = 0; v < kVectors; ++v) OfFloat32::load(sum + i + v * kLanes, sums[v]);
    for (int64_t r = 0; r < part.num_rows; ++r) {
      const auto* const row = static_cast<const Element*>(rows[r]) + i;
      if (i < fetched && r < ahead.num_rows) __builtin_prefetch(ahead.rows[r] + i * sizeof(Element), 0, 2);
      for (int64_t v = 0; v < kVectors; ++v) {
        Of::load(row + v * kLanes, x);
        sums[v] += part.weights[r] * x;
      }
    }
    for (int64_t v = 0; v < kVectors; ++v) std::memcpy(sum + i + v * kLanes, &sums[v], sizeof x);
  }
  for (; i < n; ++i) {
    for (int64_t r = 0; r < part.num_rows; ++r) sum[i] += part.weights[r] * Of::one(static_cast<const Element*>(rows[r])[i]);
  }
}

HPMOE_MULTIVERSION
void add_float32(const Part& part, const void* const* rows, const Part& ahead, float* sum) {
  add_rows<OfFloat32>(part, rows, ahead, sum);
}

HPMOE_MULTIVERSION
void add_bfloat16(const Part& part, const void* const* rows, const Part& ahead, float* sum) {
  add_rows<OfBfloat16>(part, rows, ahead, sum);
}

void fetch(const char* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 0, 2);
}

// Sets scaled = weight * grad and returns the dot product of grad and the row, in one pass.
template <class Of>
HPMOE_INLINE float scale_and_dot(int64_t n, float weight, const float* grad, const void* row, float* scaled) {
  const auto* const x = static_cast<const typename Of::Element*>(row);
  Lanes dots{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Lanes g, there;
    OfFloat32::load(grad + i, g);
    Of::load(x + i, there);
    dots += g * there;
    g *= weight;
    std::memcpy(scaled + i, &g, sizeof g);
  }
  alignas(64) float lanes[kLanes];
  std::memcpy(lanes, &dots, sizeof lanes);
  for (int64_t j = 0; i < n; ++i, ++j) {
    lanes[j] += grad[i] * Of::one(x[i]);
    scaled[i] = weight * grad[i];
  }
  return sum_of(lanes);
}

HPMOE_MULTIVERSION
float scale_and_dot_float32(int64_t n, float weight, const float* grad, const void* row, float* scaled) {
  return scale_and_dot<OfFloat32>(n, weight, grad, row, scaled);
}

HPMOE_MULTIVERSION
float scale_and_dot_bfloat16(int64_t n, float weight, const float* grad, const void* row, float* scaled) {
  return scale_and_dot<OfBfloat16>(n, weight, grad, row, scaled);
}

// Returns columns [col, col + n) of a row as float32: in place, or converted into `scratch`.
const float* as_float32(Dtype dtype, const char* row, int64_t col, int64_t n, float* scratch) {
  if (dtype == Dtype::FLOAT32) return reinterpret_cast<const float*>(row) + col;
  to_float32(dtype, row + col * element_size(dtype), n, scratch);
  return scratch;
}

// Returns the same columns for add_rows() and scale_and_dot(), which read bfloat16 themselves.
const void* as_read(Dtype dtype, const char* row, int64_t col, int64_t n, float* scratch) {
  return dtype == Dtype::BFLOAT16 ? row + col * element_size(dtype)
                                  : static_cast<const void*>(as_float32(dtype, row, col, n, scratch));
}

void write_rounded(const RowWriter& writer, Dtype dtype, const float* from, int64_t n, char* to) {
  if (dtype == Dtype::FLOAT32) return writer.write(to, reinterpret_cast<const char*>(from), n * sizeof *from);
  alignas(64) uint16_t rounded[kBlock];
  from_float32(dtype, from, n, rounded);
  writer.write(to, reinterpret_cast<const char*>(rounded), n * element_size(dtype));
}

}  // namespace

int64_t find_repeated(const Places& places, uint8_t* is_taken) {
  std::fill_n(is_taken, places.num_rows, 0);
  for (int64_t entry = 0; entry < places.num_entries; ++entry) {
    const int64_t row = places.row(entry);
    if (row < 0) continue;
    if (is_taken[row]) return row;
    is_taken[row] = 1;
  }
  return -1;
}

void spread_rows(const Places& places, const uint8_t* is_taken, const char* x, int64_t row_bytes, char* out) {
  divided(places.num_tokens(), places.top_k * row_bytes, [&](int64_t first, int64_t last) {
    const RowWriter writer = writer_of(places.num_rows * row_bytes);
    for (int64_t entry = first * places.top_k; entry < last * places.top_k; ++entry) {
      const int64_t row = places.row(entry);
      if (row >= 0) writer.write(out + row * row_bytes, x + entry / places.top_k * row_bytes, row_bytes);
    }
  });
  zero_rows(is_taken, places.num_rows, row_bytes, out);
}

void collect_rows(const Places& places, const int64_t* first_of, int64_t num_tokens, const float* weights, Dtype dtype,
                  const char* rows, int64_t cols, char* out) {
  const int64_t size = element_size(dtype), row_bytes = cols * size;
  divided(num_tokens, (places.top_k + 1) * row_bytes, [&](int64_t first, int64_t last) {
    const RowWriter writer = writer_of(num_tokens * row_bytes);
    alignas(64) float sum[kBlock], scratch[kTogether][kBlock];
    const void* read[kTogether];
    PartsOfTokens of_tokens(places, first_of, weights, rows, first, last, cols, size);
    Part part = of_tokens.next(), ahead;
    for (; part.num_cols > 0; part = ahead) {
      ahead = of_tokens.next();
      if (part.is_first) std::fill_n(sum, part.num_cols, 0.0f);
      for (int64_t r = 0; r < part.num_rows; ++r) read[r] = as_read(dtype, part.rows[r], 0, part.num_cols, scratch[r]);
      (dtype == Dtype::BFLOAT16 ? add_bfloat16 : add_float32)(part, read, ahead, sum);
      if (part.is_last) write_rounded(writer, dtype, sum, part.num_cols, out + part.token * row_bytes + part.col * size);
    }
  });
}

void collect_rows_grad(const Places& places, const uint8_t* is_taken, const float* weights, Dtype dtype, const char* rows,
                       const char* d_out, int64_t cols, char* d_rows, float* d_weights) {
  const int64_t size = element_size(dtype), row_bytes = cols * size;
  const auto pass = dtype == Dtype::BFLOAT16 ? scale_and_dot_bfloat16 : scale_and_dot_float32;
  divided(places.num_tokens(), 2 * places.top_k * row_bytes, [&](int64_t first, int64_t last) {
    const RowWriter writer = writer_of(places.num_rows * row_bytes);
    alignas(64) float scaled[kBlock], grads[kBlock], scratch[kBlock];
    std::fill(d_weights + first * places.top_k, d_weights + last * places.top_k, 0.0f);
    for_each_block(first, last, cols, [&](int64_t token, int64_t col, int64_t n) {
      const float* const grad = as_float32(dtype, d_out + token * row_bytes, col, n, grads);
      for (int64_t entry = token * places.top_k; entry < (token + 1) * places.top_k; ++entry) {
        const int64_t row = places.row(entry);
        if (row < 0) continue;
        d_weights[entry] += pass(n, weights[entry], grad, as_read(dtype, rows + row * row_bytes, col, n, scratch), scaled);
        const int64_t next = entry + 1 < places.num_entries ? places.row(entry + 1) : -1;
        if (next >= 0) fetch(rows + next * row_bytes + col * size, n * size);  // it arrives while this row is written
        write_rounded(writer, dtype, scaled, n, d_rows + row * row_bytes + col * size);
      }
    });
  });
  zero_rows(is_taken, places.num_rows, row_bytes, d_rows);
}

void copy_streamed(const char* from, int64_t bytes, char* to) {
  divided(bytes, 1, [&](int64_t first, int64_t last) { RowWriter(true).write(to + first, from + first, last - first); });
}

}  // namespace hpmoe

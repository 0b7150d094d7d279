#include "token_rows.h"

#include <algorithm>
#include <cstring>

#include "lanes.h"
#include "parallel.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace hpmoe {
namespace {

constexpr int64_t kStreamed = int64_t{16} << 20;  // bytes of a result that does not stay in the caches
constexpr int64_t kGrain = int64_t{256} << 10;    // bytes that are worth another thread
constexpr int64_t kBlock = 2048;                  // columns at a time
static_assert(kBlock % kLanes == 0, "the next block begins at lane 0");

// Writes rows, past the caches where all of them are too many for these.
class RowWriter {
 public:
  explicit RowWriter(int64_t bytes) : is_streamed_(bytes >= kStreamed) {}
  ~RowWriter() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
  }

  void write(char* to, const char* from, int64_t bytes) const {
#if defined(__SSE2__)
    if (is_streamed_) {
      const int64_t head = std::min<int64_t>(bytes, -reinterpret_cast<intptr_t>(to) & 15);
      std::memcpy(to, from, head);
      int64_t i = head;
      for (; i + 16 <= bytes; i += 16) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
      }
      std::memcpy(to + i, from + i, bytes - i);
      return;
    }
#endif
    std::memcpy(to, from, bytes);
  }

 private:
  const bool is_streamed_;
};

// job(first, last) of consecutive ranges of n items, each with so many bytes to move.
template <class Job>
void divided(int64_t n, int64_t item_bytes, Job job) {
  const Parts parts = parts_for(n, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, item_bytes)));
  parts.run([&](int32_t part) { job(n * part / parts.count, n * (part + 1) / parts.count); });
}

// visit(row, col, n) for blocks of the columns of rows first to last - 1.
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

HPMOE_MULTIVERSION
void add_scaled(int64_t n, float scale, const float* x, float* sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += scale * x[i];
}

HPMOE_MULTIVERSION
void scale_to(int64_t n, float scale, const float* x, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = scale * x[i];
}

// Columns [col, col + n) of a row as float32: themselves, or what `scratch` gets of them.
const float* as_float32(Dtype dtype, const char* row, int64_t col, int64_t n, float* scratch) {
  if (dtype == Dtype::FLOAT32) return reinterpret_cast<const float*>(row) + col;
  to_float32(dtype, row + col * element_size(dtype), n, scratch);
  return scratch;
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
  for (int64_t entry = 0; entry < places.num_tokens * places.top_k; ++entry) {
    const int64_t row = places.row(entry);
    if (row < 0) continue;
    if (is_taken[row]) return row;
    is_taken[row] = 1;
  }
  return -1;
}

void spread_rows(const Places& places, const uint8_t* is_taken, const char* x, int64_t row_bytes, char* out) {
  divided(places.num_tokens, places.top_k * row_bytes, [&](int64_t first, int64_t last) {
    const RowWriter writer(places.num_rows * row_bytes);
    for (int64_t entry = first * places.top_k; entry < last * places.top_k; ++entry) {
      const int64_t row = places.row(entry);
      if (row >= 0) writer.write(out + row * row_bytes, x + entry / places.top_k * row_bytes, row_bytes);
    }
  });
  zero_rows(is_taken, places.num_rows, row_bytes, out);
}

void collect_rows(const Places& places, const int64_t* first_of, const float* weights, Dtype dtype, const char* rows,
                  int64_t cols, char* out) {
  const int64_t row_bytes = cols * element_size(dtype);
  divided(places.num_tokens, (places.top_k + 1) * row_bytes, [&](int64_t first, int64_t last) {
    const RowWriter writer(places.num_tokens * row_bytes);
    alignas(64) float sum[kBlock], scratch[kBlock];
    for_each_block(first, last, cols, [&](int64_t token, int64_t col, int64_t n) {
      const int64_t begin = first_of ? first_of[token] : token * places.top_k;
      const int64_t end = first_of ? first_of[token + 1] : begin + places.top_k;
      std::fill_n(sum, n, 0.0f);
      for (int64_t entry = begin; entry < end; ++entry) {
        const int64_t row = places.row(entry);
        if (row < 0) continue;
        add_scaled(n, weights ? weights[entry] : 1.0f, as_float32(dtype, rows + row * row_bytes, col, n, scratch), sum);
      }
      write_rounded(writer, dtype, sum, n, out + token * row_bytes + col * element_size(dtype));
    });
  });
}

void collect_rows_grad(const Places& places, const uint8_t* is_taken, const float* weights, Dtype dtype, const char* rows,
                       const char* d_out, int64_t cols, char* d_rows, float* d_weights) {
  const int64_t row_bytes = cols * element_size(dtype);
  divided(places.num_tokens, 2 * places.top_k * row_bytes, [&](int64_t first, int64_t last) {
    const RowWriter writer(places.num_rows * row_bytes);
    alignas(64) float scaled[kBlock], grads[kBlock], scratch[kBlock];
    for (int64_t entry = first * places.top_k; entry < last * places.top_k; ++entry) {
      const int64_t row = places.row(entry);
      float lanes[kLanes] = {};
      for (int64_t col = 0; row >= 0 && col < cols; col += kBlock) {
        const int64_t n = std::min(kBlock, cols - col);
        const float* const grad = as_float32(dtype, d_out + entry / places.top_k * row_bytes, col, n, grads);
        dot_lanes(n, grad, as_float32(dtype, rows + row * row_bytes, col, n, scratch), lanes);
        scale_to(n, weights[entry], grad, scaled);
        write_rounded(writer, dtype, scaled, n, d_rows + row * row_bytes + col * element_size(dtype));
      }
      d_weights[entry] = sum_of(lanes);
    }
  });
  zero_rows(is_taken, places.num_rows, row_bytes, d_rows);
}

void copy_streamed(const char* from, int64_t bytes, char* to) {
  divided(bytes, 1,
          [&](int64_t first, int64_t last) { RowWriter(kStreamed).write(to + first, from + first, last - first); });
}

}  // namespace hpmoe

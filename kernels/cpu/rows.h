// Operands as rows of float32, for every stored dtype. Bodies walk a row in chunks: float32 is read and written in place,
// other dtypes pass through a chunk of scratch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "convert.h"

namespace hpmoe {

constexpr int64_t kChunk = 512;

// Row i begins at data + i * row_stride elements. col_stride is 0 if one element serves all columns.
struct View {
  char* data;
  int64_t row_stride, col_stride;
  Dtype dtype;

  char* at(int64_t row, int64_t col) const { return data + (row * row_stride + col * col_stride) * element_size(dtype); }
};

class Reader {
 public:
  explicit Reader(const View& view) : view_(view) {}
  explicit Reader(float everywhere) : view_{} { std::fill_n(scratch_, kChunk, everywhere); }

  // Returns columns [col, col + n) of a row, n <= kChunk; valid until the next call.
  const float* chunk(int64_t row, int64_t col, int64_t n) {
    if (!view_.data) return scratch_;
    if (view_.col_stride == 0) {
      float value;
      to_float32(view_.dtype, view_.at(row, 0), 1, &value);
      std::fill_n(scratch_, n, value);
      return scratch_;
    }
    if (view_.dtype == Dtype::FLOAT32) return reinterpret_cast<const float*>(view_.at(row, col));
    to_float32(view_.dtype, view_.at(row, col), n, scratch_);
    return scratch_;
  }

 private:
  const View view_;
  alignas(64) float scratch_[kChunk];
};

class Writer {
 public:
  explicit Writer(const View& view) : view_(view) {}

  // Returns the memory for columns [col, col + n) of a row; store() with the same arguments writes them to the row.
  float* chunk(int64_t row, int64_t col) {
    return view_.dtype == Dtype::FLOAT32 ? reinterpret_cast<float*>(view_.at(row, col)) : scratch_;
  }
  void store(int64_t row, int64_t col, int64_t n) {
    if (view_.dtype != Dtype::FLOAT32) from_float32(view_.dtype, scratch_, n, view_.at(row, col));
  }
  void store_one(int64_t row, float value) { from_float32(view_.dtype, &value, 1, view_.at(row, 0)); }

 private:
  const View view_;
  alignas(64) float scratch_[kChunk];
};

// Calls visit(row, col, n) for the chunks of rows x cols elements, row by row.
template <class Visit>
void for_each_chunk(int64_t rows, int64_t cols, Visit visit) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; col += kChunk) visit(row, col, std::min(kChunk, cols - col));
  }
}

// Copies n elements, converting where the dtypes differ.
inline void copy_row(Dtype from_dtype, const char* from, int64_t n, Dtype to_dtype, char* to) {
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, n * element_size(to_dtype));
    return;
  }
  const View in{const_cast<char*>(from), 0, 1, from_dtype}, out{to, 0, 1, to_dtype};
  Reader reader(in);
  for_each_chunk(1, n, [&](int64_t, int64_t col, int64_t count) {
    from_float32(to_dtype, reader.chunk(0, col, count), count, out.at(0, col));
  });
}

}  // namespace hpmoe

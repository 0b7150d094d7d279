// Converts rows of floats to rows of bytes (elements and scales) and back, with the same bits as tile_ops/row_formats.py.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "bits.h"
#include "bodies.h"
#include "core/row_format.h"
#include "elements.h"
#include "lanes.h"

namespace hpmoe {
namespace {

constexpr uint32_t kInfinity = 0x7F800000u;
constexpr uint32_t kLargestExponent = 8;  // of an element of e4m3
constexpr uint32_t kNanElement = 127;     // of e4m3, without its sign
constexpr uint32_t kNan = 0x7FC00000;     // of float32
constexpr uint8_t kNanCode = 255;         // of an e8m0 scale
constexpr float kLargestInt8 = 127.0f, kLargestE4m3 = 448.0f;

// Returns the bits of the largest magnitude; infinity and NaN have the largest bits.
HPMOE_MULTIVERSION
uint32_t top_bits(int64_t n, const float* x) {
  uint32_t top = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = bits_as<uint32_t>(x[i]) & 0x7FFFFFFFu;
    top = magnitude > top ? magnitude : top;
  }
  return top;
}

HPMOE_MULTIVERSION
void to_int8(int64_t n, const float* x, float scale, uint8_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    const float rounded = std::nearbyintf(x[i] / scale);
    const float kept = std::min(std::max(rounded, -kLargestInt8), kLargestInt8);
    out[i] = static_cast<uint8_t>(static_cast<int8_t>(static_cast<int32_t>(kept)));
  }
}

HPMOE_MULTIVERSION
void to_e4m3(int64_t n, const float* x, float scale, uint8_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    const float scaled = x[i] / scale, magnitude = std::min(std::fabs(scaled), kLargestE4m3);
    const uint32_t bits = bits_as<uint32_t>(magnitude);
    const uint32_t normal = ((bits + 0x7FFFFu + (bits >> 20 & 1u)) >> 20) - (120u << 3);
    const uint32_t subnormal = static_cast<uint32_t>(static_cast<int32_t>(std::nearbyintf(magnitude * 512.0f)));
    out[i] = static_cast<uint8_t>(choose(magnitude < 0x1p-6f, subnormal, normal) |
                                  (bits_as<uint32_t>(scaled) >> 24 & 0x80u));
  }
}

HPMOE_MULTIVERSION
void from_int8(int64_t n, const uint8_t* in, float scale, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(static_cast<int8_t>(in[i])) * scale;
}

HPMOE_MULTIVERSION
void from_e4m3(int64_t n, const uint8_t* in, float scale, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t code = in[i], magnitude = code & 127u;
    const uint32_t normal = (magnitude << 20) + (120u << 23);
    const uint32_t subnormal = bits_as<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f);
    const uint32_t number = choose(magnitude < 8u, subnormal, normal) | (code & 128u) << 24;
    out[i] = bits_as<float>(choose(magnitude == kNanElement, kNan, number)) * scale;
  }
}

// Writes the scale of a block whose largest magnitude has these bits, and returns it.
float put_scale(const RowFormat& format, uint32_t top, uint8_t* to) {
  if (format.scale == BlockScale::E8M0) {
    *to = top < kInfinity ? static_cast<uint8_t>(std::max(top >> 23, kLargestExponent) - kLargestExponent) : kNanCode;
    return e8m0_value(*to);
  }
  const float largest = format.element == Element::INT8 ? kLargestInt8 : kLargestE4m3;
  const float scale = top < kInfinity ? bits_as<float>(top) / largest : std::numeric_limits<float>::quiet_NaN();
  std::memcpy(to, &scale, sizeof(scale));
  return scale;
}

float get_scale(const RowFormat& format, const uint8_t* from) {
  if (format.scale == BlockScale::E8M0) return e8m0_value(*from);
  float scale;
  std::memcpy(&scale, from, sizeof(scale));
  return scale;
}

// Calls visit(first column, columns, offset of the scale in the row) for each block of a row.
template <class Visit>
void for_each_block(const RowFormat& format, int64_t cols, Visit visit) {
  const int64_t block = format.block > 0 ? format.block : cols;
  for (int64_t col = 0, i = 0; col < cols; col += block, ++i)
    visit(col, std::min(block, cols - col), cols + i * scale_bytes(format));
}

// Converts a row of bytes to floats.
void read_row(const RowFormat& format, const char* row, std::vector<float>& x) {
  const auto* const from = reinterpret_cast<const uint8_t*>(row);
  for_each_block(format, x.size(), [&](int64_t col, int64_t n, int64_t place) {
    read_elements(format.element, from + col, n, get_scale(format, from + place), x.data() + col);
  });
}

// Writes a block of floats as elements, and its scale.
void write_block(const RowFormat& format, const float* x, int64_t n, uint8_t* to, uint8_t* scale_to) {
  const float scale = put_scale(format, top_bits(n, x), scale_to);
  if (!(scale > 0.0f)) {
    std::memset(to, 0, n);
  } else if (format.element == Element::INT8) {
    to_int8(n, x, scale, to);
  } else {
    to_e4m3(n, x, scale, to);
  }
}

}  // namespace

float e8m0_value(uint8_t code) {
  return code == kNanCode ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, int{code} - 127);
}

void read_elements(Element element, const uint8_t* from, int64_t n, float scale, float* to) {
  (element == Element::INT8 ? from_int8 : from_e4m3)(n, from, scale, to);
}

Code quantize(const Frame& frame) {
  const View out = frame.view(0), in = frame.view(1);
  const RowFormat format = RowFormat::of(frame.op);
  const int64_t cols = frame.num_cols(1);
  std::vector<float> x(cols);
  for (int64_t row = 0; row < frame.unit.rows; ++row) {
    to_float32(in.dtype, in.at(row, 0), cols, x.data());
    auto* const to = reinterpret_cast<uint8_t*>(out.at(row, 0));
    for_each_block(format, cols, [&](int64_t col, int64_t n, int64_t place) {
      write_block(format, x.data() + col, n, to + col, to + place);
    });
  }
  return Code::OK;
}

// Writes the scales of a row as its buffer stores them: bytes unchanged, a float32 in the buffer's dtype.
void write_scales(const Frame& frame, int64_t row, const uint8_t* scales) {
  char* const to = frame.element(0, row, 0);
  if (frame.dtype(0) == Dtype::UINT8) {
    std::memcpy(to, scales, frame.buffer(0).cols);
    return;
  }
  float scale;
  std::memcpy(&scale, scales, sizeof(scale));
  from_float32(frame.dtype(0), &scale, 1, to);
}

// Quantizes weights: row r of the result is column r % cols of matrix r / cols. It reads several columns at a time, row
// after row.
Code quantize_weight(const Frame& frame) {
  constexpr int64_t kTogether = 16;
  const RowFormat format = RowFormat::of(frame.op);
  const int64_t cols = params::WeightFormat::of(frame.op).cols, depth = frame.num_cols(1),
                end = frame.unit.start + frame.unit.rows;
  std::vector<float> read(kTogether), x(kTogether * depth);
  std::vector<uint8_t> scales(packed_cols(format, depth) - depth);
  for (int64_t row = frame.unit.start, n; row < end; row += n) {
    n = std::min({kTogether, end - row, cols - row % cols});
    for (int64_t k = 0; k < depth; ++k) {
      const int64_t place = (row / cols * depth + k) * cols + row % cols;
      to_float32(frame.dtype(2), frame.element(2, 0, place), n, read.data());
      for (int64_t i = 0; i < n; ++i) x[i * depth + k] = read[i];
    }
    for (int64_t i = 0; i < n; ++i) {
      auto* const to = reinterpret_cast<uint8_t*>(frame.element(1, row + i, 0));
      for_each_block(format, depth, [&](int64_t k, int64_t length, int64_t place) {
        write_block(format, x.data() + i * depth + k, length, to + k, scales.data() + place - depth);
      });
      write_scales(frame, row + i, scales.data());
    }
  }
  return Code::OK;
}

Code dequantize(const Frame& frame) {
  const View out = frame.view(0), in = frame.view(1);
  const RowFormat format = RowFormat::of(frame.op);
  std::vector<float> x(frame.num_cols(0));
  for (int64_t row = 0; row < frame.unit.rows; ++row) {
    read_row(format, in.at(row, 0), x);
    from_float32(out.dtype, x.data(), x.size(), out.at(row, 0));
  }
  return Code::OK;
}

// Computes out[t] = sum_k w[t, k] * in[t * K + k], k = 0, 1, ..., over the entries that are kept.
Code reduce_quantized(const Frame& frame) {
  const RowFormat format = RowFormat::of(frame.op);
  const int64_t top_k = frame.routing->top_k(), cols = frame.num_cols(0);
  std::vector<float> weights(top_k, 1.0f), x(cols), sum(cols);
  for (int64_t token = frame.unit.start; token < frame.unit.start + frame.unit.rows; ++token) {
    if (frame.op.num_operands > 2) to_float32(frame.dtype(2), frame.element(2, token, 0), top_k, weights.data());
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (int64_t entry = token * top_k; entry < (token + 1) * top_k; ++entry) {
      if (!frame.routing->is_kept(frame.rank, entry)) continue;
      read_row(format, frame.element(1, entry, 0), x);
      add_scaled(cols, weights[entry - token * top_k], x.data(), sum.data());
    }
    from_float32(frame.dtype(0), sum.data(), cols, frame.element(0, token, 0));
  }
  return Code::OK;
}

}  // namespace hpmoe

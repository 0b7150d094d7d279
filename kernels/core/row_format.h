// The format of quantised rows: elements of one byte, then the scales of blocks of elements; see tile_ops/row_formats.py.
#pragma once

#include <cstdint>

#include "core/marks.h"
#include "core/generated/params.h"

namespace hpmoe {

using RowFormat = params::RowFormat;

// The rows of a GMM_INT8.
constexpr RowFormat kInt8Rows{Element::INT8, BlockScale::FLOAT32, 0};
constexpr int32_t kMxBlock = 32;

// Returns the format of the rows and matrices of a GMM_FP8.
HPMOE_DEVICE inline RowFormat fp8_format_of(const Op& op) {
  const int32_t block = params::Fp8Matmul::of(op).block;
  return {Element::E4M3, block > 0 ? BlockScale::E8M0 : BlockScale::FLOAT32, block};
}

// Returns the format of the matrices of a GMM_DEQUANTIZED.
HPMOE_DEVICE inline RowFormat dequantized_format_of(const Op& op) {
  const auto p = params::DequantizedMatmul::of(op);
  return {p.element, p.scale, p.block};
}

HPMOE_DEVICE inline int64_t scale_bytes(const RowFormat& format) { return format.scale == BlockScale::E8M0 ? 1 : 4; }

HPMOE_DEVICE inline int64_t packed_cols(const RowFormat& format, int64_t cols) {
  const int64_t block = format.block > 0 ? format.block : cols;
  return cols + (cols + block - 1) / block * scale_bytes(format);
}

// Returns the number of columns of a row of `bytes` bytes, or -1 if no row has this size.
HPMOE_DEVICE inline int64_t unpacked_cols(const RowFormat& format, int64_t bytes) {
  const int64_t scale = scale_bytes(format), block = format.block;
  const int64_t cols = block > 0 ? bytes - (bytes + block + scale - 1) / (block + scale) * scale : bytes - scale;
  return cols > 0 && packed_cols(format, cols) == bytes ? cols : -1;
}

}  // namespace hpmoe

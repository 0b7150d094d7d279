// The format of quantised rows: elements of one byte, then a scale for each block of them; see tile_ops/row_formats.py.
#pragma once

#include <cstdint>

#include "core/marks.h"
#include "core/generated/rules.h"

namespace hpmoe {

// block: columns of a block, 0 where it is a whole row.
struct RowFormat {
  Element element;
  BlockScale scale;
  int32_t block;
};

// Of quantised rows that are multiplied, and the most products of a sum, each of at most 127 * 128, that an int32 surely
// holds.
constexpr RowFormat kInt8Rows{Element::INT8, BlockScale::FLOAT32, 0};
constexpr int64_t kMostInt8Terms = int64_t{1} << 17;
constexpr int32_t kMxBlock = 32;

HPMOE_DEVICE inline RowFormat row_format_of(const int32_t* param) {
  return {static_cast<Element>(param[0]), static_cast<BlockScale>(param[1]), param[2]};
}

// Of the rows and matrices that a GMM_FP8 multiplies.
HPMOE_DEVICE inline RowFormat fp8_format_of(const int32_t* param) {
  return {Element::E4M3, param[2] > 0 ? BlockScale::E8M0 : BlockScale::FLOAT32, param[2]};
}

// Whether an op's params are those of a format that there is: int8 has float32 scales alone.
HPMOE_DEVICE inline bool is_row_format(const int32_t* param) {
  const bool is_known = param[0] >= 0 && param[0] < kNumElement && param[1] >= 0 && param[1] < kNumBlockScale;
  const RowFormat format = row_format_of(param);
  return is_known && param[2] >= 0 && (format.element == Element::E4M3 || format.scale == BlockScale::FLOAT32);
}

HPMOE_DEVICE inline int64_t scale_bytes(const RowFormat& format) { return format.scale == BlockScale::E8M0 ? 1 : 4; }

HPMOE_DEVICE inline int64_t packed_cols(const RowFormat& format, int64_t cols) {
  const int64_t block = format.block > 0 ? format.block : cols;
  return cols + (cols + block - 1) / block * scale_bytes(format);
}

// Columns of a row of so many bytes; -1 where no row has as many.
HPMOE_DEVICE inline int64_t unpacked_cols(const RowFormat& format, int64_t bytes) {
  const int64_t scale = scale_bytes(format), block = format.block;
  const int64_t cols = block > 0 ? bytes - (bytes + block + scale - 1) / (block + scale) * scale : bytes - scale;
  return cols > 0 && packed_cols(format, cols) == bytes ? cols : -1;
}

}  // namespace hpmoe

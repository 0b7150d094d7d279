// Params of tile operations, as hpmoe/tile_ops defines them.
// Written by `python -m hpmoe.kernels.schema`; a test holds it equal to the definitions.
// clang-format off
#pragma once

#include "core/generated/structs.h"
#include "core/marks.h"

namespace hpmoe {

namespace params {

// Axis of each row of the output: its size, and the columns between two of its elements. PICK reads elements `start`,
// `start + step`, ... of the input's axis; PLACE writes the input to these elements of the output's axis.
struct AlongAxis {
  int32_t size, inner, start, step;
  HPMOE_DEVICE static inline AlongAxis of(const Op& op) { return {op.param[0], op.param[1], op.param[2], op.param[3]}; }
};

// Reduction of the columns of a row.
struct ByColumns {
  Reduction reduction;
  HPMOE_DEVICE static inline ByColumns of(const Op& op) { return {static_cast<Reduction>(op.param[0])}; }
};

// Reduction along an axis of each row: the size of the axis, and the columns between two of its elements.
struct ByGroups {
  Reduction reduction;
  int32_t size, inner;
  HPMOE_DEVICE static inline ByGroups of(const Op& op) { return {static_cast<Reduction>(op.param[0]), op.param[1], op.param[2]}; }
};

// Choice of the largest elements of a row, or of the smallest.
struct Choice {
  bool largest;
  HPMOE_DEVICE static inline Choice of(const Op& op) { return {op.param[0] != 0}; }
};

// Direction of the rows that a completion flag is about, and the buffer that their put writes.
struct CompletionFlag {
  Leg leg;
  HPMOE_DEVICE static inline CompletionFlag of(const Op& op) { return {static_cast<Leg>(op.param[0])}; }
};

// Matrix product with a weight that is dequantized first, and the format of the weight.
struct DequantizedMatmul {
  bool is_transposed;
  Element element;
  BlockScale scale;
  int32_t block;
  HPMOE_DEVICE static inline DequantizedMatmul of(const Op& op) { return {op.param[0] != 0, static_cast<Element>(op.param[1]), static_cast<BlockScale>(op.param[2]), op.param[3]}; }
};

// Matrix product whose workers read the weight while they wait for rows, if `is_early`.
struct EarlyMatmul {
  bool is_transposed, is_early;
  HPMOE_DEVICE static inline EarlyMatmul of(const Op& op) { return {op.param[0] != 0, op.param[1] != 0}; }
};

// Elementwise function of an operation.
struct Elementwise {
  MapCode function;
  HPMOE_DEVICE static inline Elementwise of(const Op& op) { return {static_cast<MapCode>(op.param[0])}; }
};

// Replacement of values that are out of range.
struct Filled {
  Fill fill;
  HPMOE_DEVICE static inline Filled of(const Op& op) { return {static_cast<Fill>(op.param[0])}; }
};

// Matrix product of fp8 elements; `block` columns share an e8m0 scale, or a row has a float32 scale if block is 0.
struct Fp8Matmul {
  bool is_transposed, is_early;
  int32_t block;
  HPMOE_DEVICE static inline Fp8Matmul of(const Op& op) { return {op.param[0] != 0, op.param[1] != 0, op.param[2]}; }
};

// Extra work of a launch: rows that it sorts again, of `row_bytes` bytes each, a collective, and a host that waits.
struct Launched {
  LaidOut rows;
  HPMOE_DEVICE static inline Launched of(const Op& op) { return {static_cast<LaidOut>(op.param[0])}; }
};

// Matrix product; the weight is transposed if `is_transposed`.
struct Matmul {
  bool is_transposed;
  HPMOE_DEVICE static inline Matmul of(const Op& op) { return {op.param[0] != 0}; }
};

// Rows of a matrix that one task moves (`block`), and rows of the matrix (`height`).
struct MatrixBlock {
  int32_t block, height;
  HPMOE_DEVICE static inline MatrixBlock of(const Op& op) { return {op.param[0], op.param[1]}; }
};

// Route whose rows came back to a relay.
struct Relayed {
  int32_t route;
  HPMOE_DEVICE static inline Relayed of(const Op& op) { return {op.param[0]}; }
};

// Format of quantised rows: elements, scales, and columns of a block; block 0 is a whole row.
struct RowFormat {
  Element element;
  BlockScale scale;
  int32_t block;
  HPMOE_DEVICE static inline RowFormat of(const Op& op) { return {static_cast<Element>(op.param[0]), static_cast<BlockScale>(op.param[1]), op.param[2]}; }
};

// Direction of running sums: from the last column to the first if `reverse`.
struct Running {
  bool reverse;
  HPMOE_DEVICE static inline Running of(const Op& op) { return {op.param[0] != 0}; }
};

// Stream of random numbers; several kinds of noise share a seed and differ in their stream.
struct Stream {
  int32_t stream;
  HPMOE_DEVICE static inline Stream of(const Op& op) { return {op.param[0]}; }
};

// Rows of a weight's gradient that one task computes.
struct WeightBlock {
  int32_t block;
  HPMOE_DEVICE static inline WeightBlock of(const Op& op) { return {op.param[0]}; }
};

// Format of a quantised weight and its scales, and the columns of the matrix that is quantised.
struct WeightFormat {
  Element element;
  BlockScale scale;
  int32_t block, cols;
  HPMOE_DEVICE static inline WeightFormat of(const Op& op) { return {static_cast<Element>(op.param[0]), static_cast<BlockScale>(op.param[1]), op.param[2], op.param[3]}; }
};

// Extra words of an operation that sums over rows; its own params have the first word.
struct Summed {
  int32_t rows, of_tokens, first_expert;
  HPMOE_DEVICE static inline Summed of(const Op& op) { return {op.param[1], op.param[2], op.param[3]}; }
};

}  // namespace params

}  // namespace hpmoe

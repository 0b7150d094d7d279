// Params of tile operations, as hpmoe/tile_ops defines them.
// Written by `python -m hpmoe.kernels.schema`; a test holds it equal to the definitions.
// clang-format off
#pragma once

#include "core/generated/structs.h"
#include "core/marks.h"

namespace hpmoe {

namespace params {

// The size of an axis of each row of the output, the columns from one of its elements to the next, and where elements of
// the input stand: `step` apart, the first at `start`; picked from the input's axis, or placed along the output's.
struct AlongAxis {
  int32_t size, inner, start, step;

  HPMOE_DEVICE static inline AlongAxis of(const Op& op) { return {op.param[0], op.param[1], op.param[2], op.param[3]}; }
};

// What a row's columns are reduced by.
struct ByColumns {
  Reduction reduction;

  HPMOE_DEVICE static inline ByColumns of(const Op& op) { return {static_cast<Reduction>(op.param[0])}; }
};

// What the elements along an axis of each row are reduced by, its size, and the columns from one to the next.
struct ByGroups {
  Reduction reduction;
  int32_t size, inner;

  HPMOE_DEVICE static inline ByGroups of(const Op& op) { return {static_cast<Reduction>(op.param[0]), op.param[1], op.param[2]}; }
};

// Whether the largest of a row are chosen, or the smallest.
struct Choice {
  bool largest;

  HPMOE_DEVICE static inline Choice of(const Op& op) { return {op.param[0] != 0}; }
};

// Whether the matrix is multiplied turned, and whether workers that wait for its rows read it meanwhile.
struct EarlyMatmul {
  bool is_transposed, is_early;

  HPMOE_DEVICE static inline EarlyMatmul of(const Op& op) { return {op.param[0] != 0, op.param[1] != 0}; }
};

// The function that is applied.
struct Elementwise {
  MapCode function;

  HPMOE_DEVICE static inline Elementwise of(const Op& op) { return {static_cast<MapCode>(op.param[0])}; }
};

// What stands in place of a value that is out of range.
struct Filled {
  Fill fill;

  HPMOE_DEVICE static inline Filled of(const Op& op) { return {static_cast<Fill>(op.param[0])}; }
};

// And the columns of a block that has an e8m0 scale; 0 where there is a float32 one for each row.
struct Fp8Matmul {
  bool is_transposed, is_early;
  int32_t block;

  HPMOE_DEVICE static inline Fp8Matmul of(const Op& op) { return {op.param[0] != 0, op.param[1] != 0, op.param[2]}; }
};

// What a launch costs beside itself: rows laid out anew, of so many bytes, a collective, and a host that waits.
struct Launched {
  LaidOut rows;

  HPMOE_DEVICE static inline Launched of(const Op& op) { return {static_cast<LaidOut>(op.param[0])}; }
};

// Whether the matrix is multiplied turned.
struct Matmul {
  bool is_transposed;

  HPMOE_DEVICE static inline Matmul of(const Op& op) { return {op.param[0] != 0}; }
};

// Rows that a task moves of a matrix, and those of a matrix.
struct MatrixBlock {
  int32_t block, height;

  HPMOE_DEVICE static inline MatrixBlock of(const Op& op) { return {op.param[0], op.param[1]}; }
};

// Which way the rows go that a notice is of, and the buffer that their put writes, by which it is found.
struct Notice {
  Way way;

  HPMOE_DEVICE static inline Notice of(const Op& op) { return {static_cast<Way>(op.param[0])}; }
};

// Picoseconds that a link takes for a row with all that is put with it: no row is put before those of the slots before its
// own could be there; 0 for at once.
struct Paced {
  int32_t row_ps;

  HPMOE_DEVICE static inline Paced of(const Op& op) { return {op.param[0]}; }
};

// The route of the rows that came back to a relay.
struct Relayed {
  int32_t route;

  HPMOE_DEVICE static inline Relayed of(const Op& op) { return {op.param[0]}; }
};

// What elements and scales are, and the columns of a block; 0 where it is a whole row.
struct RowFormat {
  Element element;
  BlockScale scale;
  int32_t block;

  HPMOE_DEVICE static inline RowFormat of(const Op& op) { return {static_cast<Element>(op.param[0]), static_cast<BlockScale>(op.param[1]), op.param[2]}; }
};

// Whether sums run from the last column to the first.
struct Running {
  bool reverse;

  HPMOE_DEVICE static inline Running of(const Op& op) { return {op.param[0] != 0}; }
};

// Which of a seed's numbers are drawn, as several kinds of noise have one seed.
struct Stream {
  int32_t stream;

  HPMOE_DEVICE static inline Stream of(const Op& op) { return {op.param[0]}; }
};

// Rows of the block of a weight's gradient that one task computes.
struct WeightBlock {
  int32_t block;

  HPMOE_DEVICE static inline WeightBlock of(const Op& op) { return {op.param[0]}; }
};

// Of a row of a quantised weight and its scales, and the columns of a matrix that it is made of.
struct WeightFormat {
  Element element;
  BlockScale scale;
  int32_t block, cols;

  HPMOE_DEVICE static inline WeightFormat of(const Op& op) { return {static_cast<Element>(op.param[0]), static_cast<BlockScale>(op.param[1]), op.param[2], op.param[3]}; }
};

// Whether the matrix is multiplied turned, and what its rows are.
struct WidenedMatmul {
  bool is_transposed;
  Element element;
  BlockScale scale;
  int32_t block;

  HPMOE_DEVICE static inline WidenedMatmul of(const Op& op) { return {op.param[0] != 0, static_cast<Element>(op.param[1]), static_cast<BlockScale>(op.param[2]), op.param[3]}; }
};

// Words of a sum over rows, behind the first word of its params.
struct Summed {
  int32_t rows, of_tokens, first_expert;

  HPMOE_DEVICE static inline Summed of(const Op& op) { return {op.param[1], op.param[2], op.param[3]}; }
};

}  // namespace params

}  // namespace hpmoe

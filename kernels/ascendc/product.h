// A product of a matrix core, c[m, n] = a[m, k] @ b[k, n], and its steps: tiles of 128 x 256 float32 sums, each in steps
// of 512 bytes of k (512 int8, 256 half-precision or 128 float32 numbers).
#pragma once

#include "core/row_format.h"
#include "device.h"

namespace hpmoe {

constexpr int32_t kTileM = 128, kTileN = 256, kDeepBytesL1 = 512;
constexpr int32_t kMxPair = 2 * kMxBlock;  // the least depth of an mxfp8 product

// Matrices of c's shape that are added to c by a product with a unit matrix from the left. `which` has a bit for each of
// several matrices that are `step` bytes apart, with rows ld elements apart. `unit`: address of the unit matrices of
// tables.h.
struct Added {
  uint64_t address, step, which, unit;
  int32_t ld;
};

// The e8m0 scales of mxfp8 operands whose k is to the right: rows of one scale for each 32 numbers, ld bytes apart. a is
// 0 if there are no scales.
struct BlockScales {
  uint64_t a = 0, b = 0;
  int32_t ld_a = 0, ld_b = 0;
};

// Rows are ld elements apart. A transposed A is stored as [k, m], a transposed B as [n, k]. c is overwritten, or a
// float32 c is added to; k = 0 writes zeros. m = 0: no product.
struct Product {
  uint64_t a, b, c;
  int32_t ld_a, ld_b, ld_c, m, n, k;
  bool a_is_transposed, b_is_transposed, adds;
  Dtype dtype, result;
  Added added;
  Element element = Element::INT8;  // of bytes
  BlockScales scales = {};
  bool is_refused = false;  // the matrix core cannot compute it
};

__aicore__ inline Product refused_product() {
  Product product{};
  product.is_refused = true;
  return product;
}

// The contents of L1: a part of the depth of one tile, or of one of the added matrices. `added` is the number of that
// matrix, or -1.
struct Step {
  int32_t m0, n0, k0, m, n, k, added;
  bool is_first, is_last;  // of its tile
};

// Iterates over the steps of a product, tile by tile.
class Steps {
 public:
  __aicore__ inline void init(const Product& p) {
    m_ = p.m;
    n_ = p.n;
    k_ = p.k;
    deep_ = kDeepBytesL1 / element_bytes(static_cast<int32_t>(p.dtype));
    which_ = p.added.which;
    begin_tile();
    m0_ = n0_ = 0;
  }
  __aicore__ inline bool is_done() const { return m_ == 0 || n0_ >= n_; }
  __aicore__ inline Step next() {
    Step step{m0_, n0_, k0_, least(kTileM, m_ - m0_), least(kTileN, n_ - n0_), least(deep_, k_ - k0_), -1, is_first_, false};
    is_first_ = false;
    if (k0_ < k_ || which_ == 0) {
      k0_ += deep_;
    } else {
      while ((left_ >> added_ & 1) == 0) ++added_;
      left_ &= left_ - 1;
      step.added = added_;
      step.k = step.m;
    }
    step.is_last = k0_ >= k_ && left_ == 0;
    if (!step.is_last) return step;
    begin_tile();
    m0_ += kTileM;
    if (m0_ >= m_) {
      m0_ = 0;
      n0_ += kTileN;
    }
    return step;
  }

 private:
  __aicore__ inline void begin_tile() {
    k0_ = 0;
    added_ = 0;
    left_ = which_;
    is_first_ = true;
  }

  int32_t m_ = 0, n_ = 0, k_ = 0, deep_ = 0, m0_ = 0, n0_ = 0, k0_ = 0, added_ = 0;
  uint64_t which_ = 0, left_ = 0;
  bool is_first_ = true;
};

}  // namespace hpmoe

// What a matrix core is asked for, c[m, n] = a[m, k] @ b[k, n], and the steps that it takes: tiles of 128 x 256 float32
// sums, each in steps 512 bytes deep, 512 numbers of int8, 256 of half precision or 128 of float32.
#pragma once

#include "core/row_format.h"
#include "device.h"

namespace hpmoe {

constexpr int32_t kTileM = 128, kTileN = 256, kDeepBytesL1 = 512;
constexpr int32_t kMxPair = 2 * kMxBlock;  // as deep a matrix core multiplies mxfp8 at least

// Matrices of c's shape that are added to it, by multiplying them from the left with a unit matrix: those whose bit is set
// of several that begin `step` bytes apart, with rows ld elements apart. `unit`: where the unit matrices of tables.h are.
struct Added {
  uint64_t address, step, which, unit;
  int32_t ld;
};

// The scales of mxfp8 operands whose k is to the right, e8m0: rows of one for each 32 numbers, ld bytes apart; a is 0 where
// there are none.
struct BlockScales {
  uint64_t a = 0, b = 0;
  int32_t ld_a = 0, ld_b = 0;
};

// Rows are ld elements apart. A transposed operand is stored as columns: A as [k, m], B as [n, k]. c is written, or a
// float32 c added to; without products (k = 0) it becomes zeros. m = 0: nothing to do.
struct Product {
  uint64_t a, b, c;
  int32_t ld_a, ld_b, ld_c, m, n, k;
  bool a_is_transposed, b_is_transposed, adds;
  Dtype dtype, result;
  Added added;
  Element element = Element::INT8;  // of bytes
  BlockScales scales = {};
  bool is_refused = false;  // a matrix core has no way for it
};

__aicore__ inline Product refused_product() {
  Product product{};
  product.is_refused = true;
  return product;
}

// What L1 holds at once: a part of the depth of one tile, or of one of the matrices that are added; `added` is its number,
// or -1.
struct Step {
  int32_t m0, n0, k0, m, n, k, added;
  bool is_first, is_last;  // of its tile
};

// The steps of a product, tile by tile.
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

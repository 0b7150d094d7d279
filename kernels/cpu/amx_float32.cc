// float32 products on AMX, which multiplies bfloat16: each float32 is a sum of three bfloat16 (amx_packing.h). Of the
// nine products of parts the six largest are summed. The three others, x2 y3 + x3 y2 + x3 y3, are below 2^-22.9 |x y|
// together, have random sign, and are usually about 2^-27 |x y|.
#include "amx.h"

#if HPMOE_HAS_AMX_TARGET

#include "amx_packing.h"
#include "amx_sharing.h"
#include "scratch.h"

namespace hpmoe {
namespace {

// A block of c is the product of two panels of a and two of b. About kPackedB elements of b are packed at a time, about
// KC deep: 6 bytes each, they stay in L2 while all panels of a are multiplied by them. The next panels of a are packed
// during products unless a is transposed. The next panels of b are not, because L2 has no space for them.
constexpr int64_t kPackedB = 256 * 512, KC = 256;

template <bool kBothHalves>
HPMOE_AMX HPMOE_INLINE void load_a(const uint16_t* upper, const uint16_t* lower) {
  _tile_loadd(4, upper, 64);
  if (kBothHalves) _tile_loadd(5, lower, 64);
}

HPMOE_AMX HPMOE_INLINE void load_b(const uint16_t* left, const uint16_t* right) {
  _tile_loadd(6, left, 64);
  _tile_loadd(7, right, 64);
}

// Prefetches a tile of the next step into L1: panels of b are in L2, and AMX would wait for their lines.
HPMOE_AMX HPMOE_INLINE void prefetch_next(const uint16_t* tile) {
  for (int64_t i = 0; i < 16; ++i) _mm_prefetch(tile + kStep + i * 32, _MM_HINT_T0);
}

// Adds the products of the parts that are loaded.
template <bool kBothHalves>
HPMOE_AMX HPMOE_INLINE void multiply_loaded() {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if (kBothHalves) _tile_dpbf16ps(2, 5, 6);
  if (kBothHalves) _tile_dpbf16ps(3, 5, 7);
}

// A block of c, and the sums that are stored to it or added to it.
struct Block {
  float *sums, *c;
  int64_t ld, rows;
  __mmask16 low, high;
  bool add, streams;
};

HPMOE_AMX HPMOE_INLINE void prefetch_rows(const Block& block, int64_t from, int64_t to) {
  for (int64_t i = from; i < std::min(to, block.rows) && !block.streams; ++i) {
    _mm_prefetch(block.c + i * block.ld, _MM_HINT_T1);
    _mm_prefetch(block.c + i * block.ld + 16, _MM_HINT_T1);
  }
}

HPMOE_AMX HPMOE_INLINE void store_rows(const Block& block, int64_t from, int64_t to) {
  const __m512 scale = _mm512_set1_ps(1 / (kScale * kScale));
  const __mmask16 low = block.add ? block.low : 0, high = block.add ? block.high : 0;
  for (int64_t i = from; i < std::min(to, block.rows); ++i) {
    const __m512 left = _mm512_load_ps(block.sums + i * kPanel), right = _mm512_load_ps(block.sums + i * kPanel + 16);
    float* const c = block.c + i * block.ld;
    if (block.streams) {
      _mm512_stream_ps(c, _mm512_fmadd_ps(left, scale, _mm512_setzero_ps()));
      _mm512_stream_ps(c + 16, _mm512_fmadd_ps(right, scale, _mm512_setzero_ps()));
      continue;
    }
    _mm512_mask_storeu_ps(c, block.low, _mm512_fmadd_ps(left, scale, _mm512_maskz_loadu_ps(low, c)));
    _mm512_mask_storeu_ps(c + 16, block.high, _mm512_fmadd_ps(right, scale, _mm512_maskz_loadu_ps(high, c + 16)));
  }
}

// Computes the sums of a block (or of its upper half), two panels of a @ two panels of b, with small products first in
// each step. Between steps it stores rows of the previous block and prefetches rows of this one. Between products it
// packs a row of the next panels and prefetches b: AMX queues few instructions, so that this work fits between them.
constexpr int64_t kTurnsOfStep = 3;

template <bool kBothHalves>
HPMOE_AMX void multiply_panels(int64_t steps, const uint16_t* upper, const uint16_t* lower, const uint16_t* left,
                               const uint16_t* right, const Block& before, const Block& block, Packing& next) {
  const int64_t rows = (kPanel + steps - 1) / steps;
  _tile_zero(0);
  _tile_zero(1);
  if (kBothHalves) _tile_zero(2);
  if (kBothHalves) _tile_zero(3);
  for (int64_t k = 0; k < steps; ++k, upper += kStep, lower += kStep, left += kStep, right += kStep) {
    load_a<kBothHalves>(upper, lower);
    load_b(left + 2 * kTile, right + 2 * kTile);
    multiply_loaded<kBothHalves>();
    prefetch_next(left + 2 * kTile);
    next.take_turn();
    load_b(left + kTile, right + kTile);
    multiply_loaded<kBothHalves>();
    prefetch_next(right + 2 * kTile);
    load_a<kBothHalves>(upper + kTile, lower + kTile);
    multiply_loaded<kBothHalves>();
    prefetch_next(left + kTile);
    next.take_turn();
    load_b(left, right);
    multiply_loaded<kBothHalves>();
    prefetch_next(right + kTile);
    load_a<kBothHalves>(upper + 2 * kTile, lower + 2 * kTile);
    multiply_loaded<kBothHalves>();
    prefetch_next(left);
    next.take_turn();
    load_a<kBothHalves>(upper, lower);
    multiply_loaded<kBothHalves>();
    prefetch_next(right);
    store_rows(before, k * rows, (k + 1) * rows);
    prefetch_rows(block, k * rows, (k + 1) * rows);
  }
  _tile_stored(0, block.sums, kPanel * 4);
  _tile_stored(1, block.sums + 16, kPanel * 4);
  if (kBothHalves) _tile_stored(2, block.sums + 16 * kPanel, kPanel * 4);
  if (kBothHalves) _tile_stored(3, block.sums + 16 * kPanel + 16, kPanel * 4);
}

// Loads the tile of a in use; load_one_b() loads the tile of b.
HPMOE_AMX HPMOE_INLINE void load_one_a(const uint16_t* tile) { _tile_loadd(2, tile, 64); }
HPMOE_AMX HPMOE_INLINE void load_one_b(const uint16_t* tile) { _tile_loadd(3, tile, 64); }

// Adds the products of the tile of b with one tile of each panel of a: first the upper tile, which is loaded, then the
// lower one.
template <bool kBothHalves>
HPMOE_AMX HPMOE_INLINE void multiply_downward(const uint16_t* lower) {
  _tile_dpbf16ps(0, 2, 3);
  if (kBothHalves) load_one_a(lower);
  if (kBothHalves) _tile_dpbf16ps(1, 2, 3);
}

template <bool kBothHalves>
HPMOE_AMX HPMOE_INLINE void multiply_upward(const uint16_t* upper) {
  if (kBothHalves) _tile_dpbf16ps(1, 2, 3);
  if (kBothHalves) load_one_a(upper);
  _tile_dpbf16ps(0, 2, 3);
}

// multiply_block() with few tiles in use: first the left half of the block, then the right half.
template <bool kBothHalves>
HPMOE_AMX void multiply_in_few_tiles(int64_t steps, const uint16_t* upper, const uint16_t* lower, const uint16_t* left,
                                     const uint16_t* right, const Block& before, const Block& block, Packing& next) {
  const int64_t rows = (kPanel + 2 * steps - 1) / (2 * steps);
  for (int64_t side = 0, row = 0; side < 2; ++side) {
    _tile_zero(0);
    if (kBothHalves) _tile_zero(1);
    for (int64_t k = 0; k < steps; ++k, row += rows) {
      const uint16_t *const u = upper + k * kStep, *const l = lower + k * kStep;
      const uint16_t* const b = (side ? right : left) + k * kStep;
      load_one_b(b + 2 * kTile);
      load_one_a(u);
      multiply_downward<kBothHalves>(l);
      prefetch_next(b + 2 * kTile);
      load_one_b(b + kTile);
      multiply_upward<kBothHalves>(u);
      load_one_a(u + kTile);
      multiply_downward<kBothHalves>(l + kTile);
      prefetch_next(b + kTile);
      next.take_turn();
      load_one_b(b);
      multiply_upward<kBothHalves>(u + kTile);
      load_one_a(u + 2 * kTile);
      multiply_downward<kBothHalves>(l + 2 * kTile);
      prefetch_next(b);
      load_one_a(u);
      multiply_downward<kBothHalves>(l);
      store_rows(before, row, row + rows);
      prefetch_rows(block, row, row + rows);
    }
    _tile_stored(0, block.sums + 16 * side, kPanel * 4);
    if (kBothHalves) _tile_stored(1, block.sums + 16 * kPanel + 16 * side, kPanel * 4);
  }
}

template <bool kBothHalves>
constexpr auto* way_to_multiply(bool in_few_tiles) {
  return in_few_tiles ? multiply_in_few_tiles<kBothHalves> : multiply_panels<kBothHalves>;
}

// Memory for the panels of b and a that are multiplied, for the next panels, and for the sums of two blocks.
struct Memory {
  uint16_t *b, *a[2];
  float* sums[2];
};

// Computes at most 32 rows of c: two panels of a @ the panels of b, stored or added. The last block remains to be stored.
HPMOE_AMX void multiply_row(const Sizes& s, const uint16_t* a, const Memory& memory, const Matrix& c, bool add,
                            Block& before, Packing& next) {
  const bool streams = !add && can_stream(c);
  const int64_t steps = padded(s.k) / 32;
  const bool is_shared = core_is_shared();
  const auto multiply = s.m > kLines ? way_to_multiply<true>(is_shared) : way_to_multiply<false>(is_shared);
  for (int64_t j = 0; j < s.n; j += kPanel) {
    const int64_t cols = s.n - j;
    const uint16_t* const left = memory.b + j / kLines * steps * kStep;
    float* const sums = memory.sums[before.sums == memory.sums[0]];
    const Block block{sums,        reinterpret_cast<float*>(c.data) + j,
                      c.ld,        s.m,
                      first(cols), first(cols - kLines),
                      add,         streams && cols >= kPanel};
    const uint16_t* const right = cols > kLines ? left + steps * kStep : left;
    multiply(steps, a, a + steps * kStep, left, right, before, block, next);
    before = block;
  }
}

// Lines of a that are packed at a time: for a transposed a more of them, because its rows are far apart.
constexpr int64_t lines_of_a(const Matrix& a) { return a.transposed ? 256 : kPanel; }

// Number of calls of take_turn() during a product of these sizes.
constexpr int64_t turns_of(const Sizes& s) {
  return padded(s.m) / kPanel * (padded(s.n) / kPanel) * (padded(s.k) / 32) * kTurnsOfStep;
}

// Computes c = a @ b, or adds it to c, for n and k of one step.
HPMOE_AMX void multiply_step(const Sizes& s, const Matrix& a, const Matrix& b, const Matrix& c, bool add,
                             const Memory& memory, Float32Gemm ordinary) {
  Packing packing;
  packing.begin(b, !b.transposed, s.n, s.k, memory.b, 1);
  const bool b_fits = packing.finish();
  const int64_t most = b_fits ? lines_of_a(a) : s.m;
  const auto begin = [&](int64_t line, int64_t turns) {
    const int64_t lines = b_fits ? std::min(most, s.m - line) : 0;
    packing.begin(part(a, a.transposed, line, 0), a.transposed, lines, s.k, memory.a[line / most % 2], turns);
  };
  begin(0, 1);
  Block before{};
  for (int64_t i = 0, rows; i < s.m; i += rows) {
    rows = std::min(most, s.m - i);
    const bool all_fit = packing.finish() && b_fits;
    if (!a.transposed) begin(i + rows, turns_of({rows, s.n, s.k}));
    for (int64_t j = 0; j < rows && all_fit; j += kPanel) {
      const uint16_t* const panels = memory.a[i / most % 2] + j * padded(s.k) * kParts;
      multiply_row({std::min(kPanel, rows - j), s.n, s.k}, panels, memory, part(c, false, i + j, 0), add, before, packing);
    }
    if (!all_fit) {
      _tile_release();
      ordinary({rows, s.n, s.k}, part(a, a.transposed, i, 0), b, part(c, false, i, 0), add);
      configure_tiles();
    }
    if (a.transposed) begin(i + rows, 1);
  }
  store_rows(before, 0, kPanel);
}

}  // namespace

HPMOE_AMX void amx_float32_gemm(const Sizes& s, const Matrix& a, const Matrix& b, const Matrix& out, bool accumulate,
                                Float32Gemm ordinary) {
  const int64_t k_step = even_steps(s.k, KC), n_step = even_steps(s.n, kPackedB / k_step);
  const int64_t of_b = kParts * k_step * n_step, of_a = kParts * k_step * lines_of_a(a), of_sums = kPanel * kPanel;
  const int64_t of_next_a = a.transposed ? 0 : of_a;
  thread_local Scratch<uint16_t> scratch;
  uint16_t* const packed = scratch.at_least(of_b + of_a + of_next_a + 4 * of_sums);
  float* const sums = reinterpret_cast<float*>(packed + of_b + of_a + of_next_a);
  const Memory memory{packed, {packed + of_b, packed + of_b + of_next_a}, {sums, sums + of_sums}};
  Matrix c = out;
  c.streamed = out.streamed && s.k <= k_step;  // several steps read the sums again
  configure_tiles();
  for (int64_t j = 0; j < s.n; j += n_step) {
    for (int64_t k = 0; k < s.k; k += k_step) {
      const Sizes step{s.m, std::min(n_step, s.n - j), std::min(k_step, s.k - k)};
      multiply_step(step, part(a, a.transposed, 0, k), part(b, !b.transposed, j, k), part(c, false, 0, j),
                    accumulate || k > 0, memory, ordinary);
    }
  }
  _tile_release();
  if (c.streamed) _mm_sfence();
}

}  // namespace hpmoe

#else

namespace hpmoe {

void amx_float32_gemm(const Sizes&, const Matrix&, const Matrix&, const Matrix&, bool, Float32Gemm) {}

}  // namespace hpmoe

#endif

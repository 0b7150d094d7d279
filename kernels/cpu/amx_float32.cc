// float32 products on units that multiply bfloat16. A float32 has 24 bits and is the sum of three bfloat16 of 8 each,
// x = x1 + x2 + x3, exactly, |x2| <= 2^-8 |x|, |x3| <= 2^-16 |x|. Of the nine products of parts the six largest are summed in
// float32: what is left out, x2 y3 + x3 y2 + x3 y3, is below 2^-22.9 |x y|, of random sign, and about 2^-27 |x y| as a rule.
#include "amx.h"

#if HPMOE_HAS_AMX_TARGET

#include "amx_tiles.h"
#include "bits.h"
#include "scratch.h"

namespace hpmoe {
namespace {

// A panel is 16 lines of a or b, kParts tiles for every 32 k. A block of c is the product of two panels of each. Of b about
// kPackedB elements are packed at a time, about KC long: 6 bytes each, they stay in L2 while panels of a go by.
constexpr int64_t kPackedB = 256 * 512, KC = 256;
constexpr int64_t kLines = 16, kParts = 3, kStep = kParts * kTile;

// The units flush numbers below 2^-126 to zero, so parts and their products must be larger. Operands are scaled by kScale and
// must then be 0 or in [2^-46, 2^58): a product is at least 2^-92, and what is flushed below 2^-34 of it; the sum of KC
// products is finite. Bounds as bfloat16 bits.
constexpr float kScale = 0x1p34f;
constexpr uint16_t kLeast = (127 - 46) << 7, kLimit = (127 + 58) << 7;

// Leading parts seen, as bits less one, so that 0 is the largest unsigned number and the smallest signed one.
struct Range {
  __m512i least, most;
};

HPMOE_AMX inline Range empty_range() { return {_mm512_set1_epi16(-1), _mm512_set1_epi16(-1)}; }

HPMOE_AMX inline bool fits(const Range& range) {
  return !_mm512_cmplt_epu16_mask(range.least, _mm512_set1_epi16(kLeast - 1)) &&
         !_mm512_cmpge_epi16_mask(range.most, _mm512_set1_epi16(kLimit - 1));
}

constexpr __mmask16 first(int64_t n) {
  return n >= 16 ? 0xFFFF : n <= 0 ? 0 : static_cast<__mmask16>((1u << n) - 1u);
}

// Pairs of bfloat16: the upper halves of float32.
HPMOE_AMX HPMOE_INLINE __m512i zip(__m512i even, __m512i odd) {
  return _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_maskz_srli_epi32(kAll, even, 16), odd);
}

HPMOE_AMX HPMOE_INLINE __m512 upper_half(__m512i bits) {
  return _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(0xFFFF0000)));
}

// A row of each of three tiles: the parts of even[i] and odd[i], side by side.
HPMOE_AMX HPMOE_INLINE void split(__m512 even, __m512 odd, uint16_t* to, Range& range) {
  const __m512 scale = _mm512_set1_ps(kScale), out_of_range = _mm512_set1_ps(0x1p100f);
  const __m512i half = _mm512_set1_epi32(0x8000);
  __m512i rounded[2][2];
  __m512 rest[2] = {even, odd};
  for (int i = 0; i < 2; ++i) {
    rest[i] = _mm512_maskz_min_ps(kAll, _mm512_mul_ps(rest[i], scale), out_of_range);  // of a NaN too, which rounding may turn into 0
    for (int part = 0; part < 2; ++part) {
      rounded[part][i] = _mm512_add_epi32(_mm512_castps_si512(rest[i]), half);
      rest[i] = _mm512_sub_ps(rest[i], upper_half(rounded[part][i]));
    }
  }
  const __m512i leading = zip(rounded[0][0], rounded[0][1]);
  _mm512_store_si512(to, leading);
  _mm512_store_si512(to + kTile, zip(rounded[1][0], rounded[1][1]));
  _mm512_store_si512(to + 2 * kTile, zip(_mm512_castps_si512(rest[0]), _mm512_castps_si512(rest[1])));
  const __m512i less_one = _mm512_add_epi16(_mm512_and_si512(leading, _mm512_set1_epi16(0x7FFF)), _mm512_set1_epi16(-1));
  range.least = _mm512_min_epu16(range.least, less_one);
  range.most = _mm512_max_epi16(range.most, less_one);
}

// Up to 16 x 16 float32, the rest zeros; and as many that are read later.
struct Square {
  const float *data, *later;
  int64_t ld, rows;
  __mmask16 cols;
};

// Asks L2 for what is read later: L1 would not keep it, where rows are a power of two apart.
HPMOE_AMX HPMOE_INLINE __m512 row_of(const Square& square, int64_t i) {
  _mm_prefetch(square.later + i * square.ld, _MM_HINT_T1);
  return i < square.rows ? _mm512_maskz_loadu_ps(square.cols, square.data + i * square.ld) : _mm512_setzero_ps();
}

// Three tiles of the parts of two squares, pairs of an element of each; turned over their diagonals where asked.
template <bool kTurned>
HPMOE_AMX Range pack_tiles(Square even, Square odd, uint16_t* to, Range range) {
  if (!kTurned) {
    for (int64_t i = 0; i < 16; ++i) split(row_of(even, i), row_of(odd, i), to + i * 32, range);
    return range;
  }
  alignas(64) uint16_t square[2][kTile];
  for (int64_t i = 0; i < 16; ++i) {
    _mm512_store_ps(square[0] + i * 32, row_of(even, i));
    _mm512_store_ps(square[1] + i * 32, row_of(odd, i));
  }
  for (uint16_t* tile : square) transpose_tile(tile);
  for (int64_t i = 0; i < 16; ++i) {
    split(_mm512_load_ps(square[0] + i * 32), _mm512_load_ps(square[1] + i * 32), to + i * 32, range);
  }
  return range;
}

// Where 16 lines and 32 k of an operand begin.
struct Place {
  int64_t line, k;
};

// Lines [line, ...) and k [k, ...) of an operand whose k go along its rows or not.
Matrix part(const Matrix& x, bool k_is_row, int64_t line, int64_t k) {
  return {x.data + (k_is_row ? k * x.ld + line : line * x.ld + k) * 4, x.dtype, x.ld, x.transposed, x.streamed};
}

// Panels of the first `lines` lines and kc k, in the order of memory; whether their numbers fit. A tile is [line][k] or
// [k][line] as x has them, or turned; a pair is k and k + 16.
HPMOE_AMX bool pack(const Matrix& x, bool k_is_row, int64_t lines, int64_t kc, uint16_t* packed) {
  constexpr int64_t kAhead = 8;
  const int64_t panels = (lines + kLines - 1) / kLines, steps = padded(kc) / 32, all = panels * steps;
  const auto place = [&](int64_t i) {  // after the last one come the lines that follow
    const int64_t at = i % all, panel = k_is_row ? at % panels : at / steps, step = k_is_row ? at / panels : at % steps;
    return Place{(i / all * panels + panel) * kLines, step * 32};
  };
  Range range = empty_range();
  for (int64_t i = 0; i < all; ++i) {
    const Place now = place(i), later = place(i + kAhead);
    const auto square = [&](int64_t half) {
      const int64_t left = lines - now.line, num_k = kc - now.k - half;
      const auto* const data = reinterpret_cast<const float*>(part(x, k_is_row, now.line, now.k + half).data);
      const auto* const next = reinterpret_cast<const float*>(part(x, k_is_row, later.line, later.k + half).data);
      return Square{data, next, x.ld, k_is_row ? num_k : left, first(k_is_row ? left : num_k)};
    };
    uint16_t* const to = packed + (now.line / kLines * steps + now.k / 32) * kStep;
    range = (x.transposed ? pack_tiles<true> : pack_tiles<false>)(square(0), square(16), to, range);
  }
  return fits(range);
}

template <bool kBothHalves>
HPMOE_AMX HPMOE_INLINE void load_a(const uint16_t* upper, const uint16_t* lower) {
  _tile_loadd(4, upper, 64);
  if (kBothHalves) _tile_loadd(5, lower, 64);
}

HPMOE_AMX HPMOE_INLINE void load_b(const uint16_t* left, const uint16_t* right) {
  _tile_loadd(6, left, 64);
  _tile_loadd(7, right, 64);
}

// Adds the products of the parts that are loaded.
template <bool kBothHalves>
HPMOE_AMX HPMOE_INLINE void multiply_loaded() {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  if (kBothHalves) _tile_dpbf16ps(2, 5, 6);
  if (kBothHalves) _tile_dpbf16ps(3, 5, 7);
}

// A block of c, and the sums that are stored into it or added to it.
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

// The sums of a block (or of its upper half) = two panels of a @ two of b. In each step small products come first. Between
// steps rows of the block before are stored, and memory is asked for rows of this one.
template <bool kBothHalves>
HPMOE_AMX void multiply_panels(int64_t steps, const uint16_t* upper, const uint16_t* lower, const uint16_t* left,
                               const uint16_t* right, const Block& before, const Block& block) {
  const int64_t rows = (kPanel + steps - 1) / steps;
  _tile_zero(0);
  _tile_zero(1);
  if (kBothHalves) _tile_zero(2);
  if (kBothHalves) _tile_zero(3);
  for (int64_t k = 0; k < steps; ++k, upper += kStep, lower += kStep, left += kStep, right += kStep) {
    load_a<kBothHalves>(upper, lower);
    load_b(left + 2 * kTile, right + 2 * kTile);
    multiply_loaded<kBothHalves>();
    load_b(left + kTile, right + kTile);
    multiply_loaded<kBothHalves>();
    load_a<kBothHalves>(upper + kTile, lower + kTile);
    multiply_loaded<kBothHalves>();
    load_b(left, right);
    multiply_loaded<kBothHalves>();
    load_a<kBothHalves>(upper + 2 * kTile, lower + 2 * kTile);
    multiply_loaded<kBothHalves>();
    load_a<kBothHalves>(upper, lower);
    multiply_loaded<kBothHalves>();
    store_rows(before, k * rows, (k + 1) * rows);
    prefetch_rows(block, k * rows, (k + 1) * rows);
  }
  _tile_stored(0, block.sums, kPanel * 4);
  _tile_stored(1, block.sums + 16, kPanel * 4);
  if (kBothHalves) _tile_stored(2, block.sums + 16 * kPanel, kPanel * 4);
  if (kBothHalves) _tile_stored(3, block.sums + 16 * kPanel + 16, kPanel * 4);
}

// Memory for panels of b and of a, and the sums of two blocks.
struct Memory {
  uint16_t *b, *a;
  float* sums[2];
};

// Rows of c, at most 32, = the two panels of a @ those of b, or added to them. Leaves the last block to be stored.
HPMOE_AMX void multiply_row(const Sizes& s, const Memory& memory, const Matrix& c, bool add, Block& before) {
  const bool streams = !add && can_stream(c);
  const int64_t steps = padded(s.k) / 32;
  const auto multiply = s.m > kLines ? multiply_panels<true> : multiply_panels<false>;
  for (int64_t j = 0; j < s.n; j += kPanel) {
    const int64_t cols = s.n - j;
    const uint16_t* const left = memory.b + j / kLines * steps * kStep;
    float* const sums = memory.sums[before.sums == memory.sums[0]];
    const Block block{sums, reinterpret_cast<float*>(c.data) + j, c.ld, s.m, first(cols), first(cols - kLines), add,
                      streams && cols >= kPanel};
    const uint16_t* const right = cols > kLines ? left + steps * kStep : left;
    multiply(steps, memory.a, memory.a + steps * kStep, left, right, before, block);
    before = block;
  }
}

// Lines of a that are packed at a time: of a transposed one long pieces of its rows, for they are far apart.
constexpr int64_t lines_of_a(const Matrix& a) { return a.transposed ? 256 : kPanel; }

// c = a @ b, or added to it, n and k of one step.
HPMOE_AMX void multiply_step(const Sizes& s, const Matrix& a, const Matrix& b, const Matrix& c, bool add,
                             const Memory& memory, Float32Gemm ordinary) {
  const bool b_fits = pack(b, !b.transposed, s.n, s.k, memory.b);
  Block before{};
  for (int64_t i = 0, rows; i < s.m; i += rows) {
    rows = std::min(b_fits ? lines_of_a(a) : s.m, s.m - i);
    if (b_fits && pack(part(a, a.transposed, i, 0), a.transposed, rows, s.k, memory.a)) {
      for (int64_t j = 0; j < rows; j += kPanel) {
        const Memory panel{memory.b, memory.a + j * padded(s.k) * kParts, {memory.sums[0], memory.sums[1]}};
        multiply_row({std::min(kPanel, rows - j), s.n, s.k}, panel, part(c, false, i + j, 0), add, before);
      }
      continue;
    }
    _tile_release();
    ordinary({rows, s.n, s.k}, part(a, a.transposed, i, 0), b, part(c, false, i, 0), add);
    configure_tiles();
  }
  store_rows(before, 0, kPanel);
}

}  // namespace

HPMOE_AMX void amx_float32_gemm(const Sizes& s, const Matrix& a, const Matrix& b, const Matrix& out, bool accumulate,
                                Float32Gemm ordinary) {
  const int64_t k_step = even_steps(s.k, KC), n_step = even_steps(s.n, kPackedB / k_step);
  const int64_t of_b = kParts * k_step * n_step, of_a = kParts * k_step * lines_of_a(a), of_sums = kPanel * kPanel;
  thread_local Scratch<uint16_t> scratch;
  uint16_t* const packed = scratch.at_least(of_b + of_a + 4 * of_sums);
  float* const sums = reinterpret_cast<float*>(packed + of_b + of_a);
  const Memory memory{packed, packed + of_b, {sums, sums + of_sums}};
  Matrix c = out;
  c.streamed = out.streamed && s.k <= k_step;  // sums of several steps are read again
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

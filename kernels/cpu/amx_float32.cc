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

// A panel is 16 lines of a or b, kParts tiles for every 32 k. A block of c is the product of one of a and two of b. Of b about
// kPackedB elements are packed at a time, about KC long: 6 bytes each, they stay in L2 while panels of a go by, which L1 holds.
// Of a transposed a whole cache lines are packed, MC lines of it.
constexpr int64_t kPackedB = 256 * 512, KC = 256, MC = 64;
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

HPMOE_AMX HPMOE_INLINE __mmask16 first(int64_t n) {
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

// Up to 16 x 16 float32, the rest zeros.
struct Square {
  const float* data;
  int64_t ld, rows;
  __mmask16 cols;
};

HPMOE_AMX HPMOE_INLINE __m512 row_of(const Square& square, int64_t i) {
  constexpr int64_t kAhead = 64;
  if (i >= square.rows) return _mm512_setzero_ps();
  _mm_prefetch(square.data + i * square.ld + kAhead, _MM_HINT_T0);
  return _mm512_maskz_loadu_ps(square.cols, square.data + i * square.ld);
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

const float* element(const Matrix& x, int64_t row, int64_t col) {
  return reinterpret_cast<const float*>(x.data) + row * x.ld + col;
}

// The tiles of a panel and 32 k, [line][k] or [k][line] as x has them, or turned. A pair is k and k + 16.
HPMOE_AMX Range pack_step(const Matrix& x, bool k_is_row, int64_t line, int64_t lines, int64_t k, int64_t num_k, uint16_t* to,
                          const Range& range) {
  const float* const data = k_is_row ? element(x, k, line) : element(x, line, k);
  const Square even{data, x.ld, k_is_row ? num_k : lines, first(k_is_row ? lines : num_k)};
  const Square odd{data + (k_is_row ? 16 * x.ld : 16), x.ld, k_is_row ? num_k - 16 : lines,
                   first(k_is_row ? lines : num_k - 16)};
  return (x.transposed ? pack_tiles<true> : pack_tiles<false>)(even, odd, to, range);
}

// Panels of the lines [line, line + lines), k in [k0, k0 + kc), in the order of memory; whether their numbers fit.
HPMOE_AMX bool pack(const Matrix& x, bool k_is_row, int64_t line, int64_t lines, int64_t k0, int64_t kc, uint16_t* packed) {
  Range range = empty_range();
  const int64_t panels = (lines + kLines - 1) / kLines, steps = padded(kc) / 32;
  for (int64_t i = 0; i < panels * steps; ++i) {
    const int64_t panel = k_is_row ? i % panels : i / steps, step = k_is_row ? i / panels : i % steps;
    const int64_t done = panel * kLines;
    range = pack_step(x, k_is_row, line + done, lines - done, k0 + step * 32, kc - step * 32,
                      packed + (panel * steps + step) * kStep, range);
  }
  return fits(range);
}

// Adds the products of a part of a and the two of b that are loaded.
HPMOE_AMX inline void multiply_loaded() {
  _tile_dpbf16ps(0, 4, 2);
  _tile_dpbf16ps(1, 4, 3);
}

HPMOE_AMX inline void load_b(const uint16_t* left, const uint16_t* right) {
  _tile_loadd(2, left, 64);
  _tile_loadd(3, right, 64);
}

// sums[16, 32] = panel of a @ two panels of b. In each step small products come first. Only five tiles are in use: a core
// whose other hardware thread is busy has few to spare, without which loads of tiles and products wait for each other.
HPMOE_AMX void multiply_panels(int64_t kc, const uint16_t* a, const uint16_t* left, const uint16_t* right, float* sums) {
  _tile_zero(0);
  _tile_zero(1);
  for (int64_t k = 0; k < kc; k += 32, a += kStep, left += kStep, right += kStep) {
    _tile_loadd(4, a, 64);
    load_b(left + 2 * kTile, right + 2 * kTile);
    multiply_loaded();
    load_b(left + kTile, right + kTile);
    multiply_loaded();
    _tile_loadd(4, a + kTile, 64);
    multiply_loaded();
    load_b(left, right);
    multiply_loaded();
    _tile_loadd(4, a + 2 * kTile, 64);
    multiply_loaded();
    _tile_loadd(4, a, 64);
    multiply_loaded();
  }
  _tile_stored(0, sums, kPanel * 4);
  _tile_stored(1, sums + 16, kPanel * 4);
}

HPMOE_AMX void store_block(const float* sums, int64_t rows, int64_t cols, float* c, int64_t ldc, bool add) {
  const __m512 scale = _mm512_set1_ps(1 / (kScale * kScale));
  const __mmask16 low = first(cols), high = first(cols - 16);
  for (int64_t i = 0; i < rows; ++i, sums += kPanel, c += ldc) {
    const __m512 left = _mm512_load_ps(sums), right = _mm512_load_ps(sums + 16);
    _mm512_mask_storeu_ps(c, low, _mm512_fmadd_ps(left, scale, _mm512_maskz_loadu_ps(add ? low : 0, c)));
    _mm512_mask_storeu_ps(c + 16, high, _mm512_fmadd_ps(right, scale, _mm512_maskz_loadu_ps(add ? high : 0, c + 16)));
  }
}

// Lines [line, ...) and k [k0, ...) of an operand whose k go along its rows or not.
Matrix part(const Matrix& x, bool k_is_row, int64_t line, int64_t k0) {
  return {x.data + (k_is_row ? k0 * x.ld + line : line * x.ld + k0) * 4, x.dtype, x.ld, x.transposed};
}

// c = the panels of a @ those of b, or c += them.
HPMOE_AMX void multiply_packed(const Sizes& s, const uint16_t* a, const uint16_t* b, float* sums, const Matrix& c, bool add) {
  const int64_t line = kParts * padded(s.k);
  for (int64_t i = 0; i < s.m; i += kLines) {
    const int64_t rows = std::min(kLines, s.m - i);
    for (int64_t j = 0; j < s.n; j += kPanel) {
      const uint16_t* const left = b + j * line;
      for (int64_t half = 0; half < kPanel; half += kLines) prefetch_block(rows, c, i, j + half);
      multiply_panels(s.k, a + i * line, left, s.n - j > kLines ? left + kLines * line : left, sums);
      store_block(sums, rows, s.n - j, reinterpret_cast<float*>(c.data) + i * c.ld + j, c.ld, add);
    }
  }
}

}  // namespace

HPMOE_AMX void amx_float32_gemm(const Sizes& s, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate,
                                Float32Gemm ordinary) {
  const int64_t k_step = even_steps(s.k, KC), n_step = even_steps(s.n, kPackedB / k_step), m_step = a.transposed ? MC : kLines;
  thread_local Scratch<uint16_t> scratch;
  uint16_t* const of_b = scratch.at_least(kParts * k_step * (n_step + m_step) + 2 * kLines * kPanel);
  uint16_t* const of_a = of_b + kParts * k_step * n_step;
  float* const sums = reinterpret_cast<float*>(of_a + kParts * k_step * m_step);
  configure_tiles();
  for (int64_t j0 = 0; j0 < s.n; j0 += n_step) {
    const int64_t nc = std::min(n_step, s.n - j0);
    for (int64_t k0 = 0; k0 < s.k; k0 += k_step) {
      const int64_t kc = std::min(k_step, s.k - k0);
      const bool b_fits = pack(b, !b.transposed, j0, nc, k0, kc, of_b), add = accumulate || k0 > 0;
      for (int64_t i = 0, rows; i < s.m; i += rows) {
        rows = std::min(b_fits ? m_step : s.m, s.m - i);
        const Matrix block = part(c, false, i, j0);
        if (b_fits && pack(a, a.transposed, i, rows, k0, kc, of_a)) {
          multiply_packed({rows, nc, kc}, of_a, of_b, sums, block, add);
          continue;
        }
        _tile_release();
        ordinary({rows, nc, kc}, part(a, a.transposed, i, k0), part(b, !b.transposed, j0, k0), block, add);
        configure_tiles();
      }
    }
  }
  _tile_release();
}

}  // namespace hpmoe

#else

namespace hpmoe {

void amx_float32_gemm(const Sizes&, const Matrix&, const Matrix&, const Matrix&, bool, Float32Gemm) {}

}  // namespace hpmoe

#endif

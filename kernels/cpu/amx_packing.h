// Packs float32 operands for AMX, which multiplies bfloat16: all rows at once, or a few rows at a time during products,
// when the vector units are idle. A float32 has 24 bits and is exactly the sum of three bfloat16 of 8 bits, x = x1 + x2 +
// x3, with |x2| <= 2^-8 |x| and |x3| <= 2^-16 |x|.
#pragma once

#include "amx_tiles.h"
#include "bits.h"

namespace hpmoe {

// A panel is 16 lines of a or b: kParts tiles for every 32 k.
constexpr int64_t kLines = 16, kParts = 3, kStep = kParts * kTile;

// AMX flushes numbers below 2^-126 to zero, so parts and their products must be larger. Operands are multiplied by kScale
// and must then be 0 or in [2^-46, 2^58). A product is then at least 2^-92, flushed parts are below 2^-34 of it, and a
// sum of 512 products is finite. kLeast and kLimit are bounds as bfloat16 bits.
constexpr float kScale = 0x1p34f;
constexpr uint16_t kLeast = (127 - 46) << 7, kLimit = (127 + 58) << 7;

// The range of the leading parts, as bits minus one: 0 then becomes the largest unsigned number and the smallest signed
// one.
struct Range {
  __m512i least, most;
};

HPMOE_AMX inline Range empty_range() { return {_mm512_set1_epi16(-1), _mm512_set1_epi16(-1)}; }

HPMOE_AMX inline bool fits(const Range& range) {
  return !_mm512_cmplt_epu16_mask(range.least, _mm512_set1_epi16(kLeast - 1)) &&
         !_mm512_cmpge_epi16_mask(range.most, _mm512_set1_epi16(kLimit - 1));
}

constexpr __mmask16 first(int64_t n) { return n >= 16 ? 0xFFFF : n <= 0 ? 0 : static_cast<__mmask16>((1u << n) - 1u); }

// Combines the upper halves of two float32 vectors into pairs of bfloat16.
HPMOE_AMX HPMOE_INLINE __m512i zip(__m512i even, __m512i odd) {
  return _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_maskz_srli_epi32(kAll, even, 16), odd);
}

HPMOE_AMX HPMOE_INLINE __m512 upper_half(__m512i bits) {
  return _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(0xFFFF0000)));
}

// Writes one row of each of three tiles: the parts of even[i] and odd[i] as pairs.
HPMOE_AMX HPMOE_INLINE void split(__m512 even, __m512 odd, uint16_t* to, Range& range) {
  const __m512 scale = _mm512_set1_ps(kScale), out_of_range = _mm512_set1_ps(0x1p100f);
  const __m512i half = _mm512_set1_epi32(0x8000);
  __m512i rounded[2][2];
  __m512 rest[2] = {even, odd};
  for (int i = 0; i < 2; ++i) {
    // A NaN becomes out of range too; otherwise rounding could turn it into 0.
    rest[i] = _mm512_maskz_min_ps(kAll, _mm512_mul_ps(rest[i], scale), out_of_range);
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

// Up to 16 x 16 float32, padded with zeros, and the address of the square that is read later.
struct Square {
  const float *data, *later;
  int64_t ld, rows;
  __mmask16 cols;
};

// Reads row i and prefetches the same row of the later square into L2. L1 would not keep it if rows are a power of two
// apart.
HPMOE_AMX HPMOE_INLINE __m512 row_of(const Square& square, int64_t i) {
  _mm_prefetch(square.later + i * square.ld, _MM_HINT_T1);
  return i < square.rows ? _mm512_maskz_loadu_ps(square.cols, square.data + i * square.ld) : _mm512_setzero_ps();
}

// Returns the part of an operand from `line` and `k` on.
inline Matrix part(const Matrix& x, bool k_is_row, int64_t line, int64_t k) {
  return {x.data + (k_is_row ? k * x.ld + line : line * x.ld + k) * 4, x.dtype, x.ld, x.transposed, x.streamed};
}

// Packs panels of the first `lines` lines and kc k of an operand. It writes groups of three tiles in memory order. A tile
// is [line][k] or [k][line] like the operand, or its transpose; a pair holds k and k + 16.
class Packing {
 public:
  // Starts packing into `to`. `turns` calls of take_turn() pack everything; finish() packs the rest.
  HPMOE_AMX void begin(const Matrix& x, bool k_is_row, int64_t lines, int64_t kc, uint16_t* to, int64_t turns) {
    x_ = x;
    k_is_row_ = k_is_row;
    lines_ = lines;
    kc_ = kc;
    packed_ = to;
    range_ = empty_range();
    groups_left_ = padded_lines() / kLines * (padded(kc) / 32);
    rows_a_turn_ = (groups_left_ * 16 + turns - 1) / turns;
    now_ = later_ = {0, 0, padded_lines()};
    for (int64_t i = 0; i < kAhead && groups_left_ > 0; ++i) go_on(later_);
    begin_group();
  }

  // Packs a few rows of an operand that is not transposed.
  HPMOE_AMX HPMOE_INLINE void take_turn() {
    for (int64_t i = 0; i < rows_a_turn_ && groups_left_ > 0; ++i) pack_row();
  }

  // Packs the rest. Returns true if all numbers are in range.
  HPMOE_AMX bool finish() {
    while (groups_left_ > 0 && row_ > 0) pack_row();
    while (groups_left_ > 0) x_.transposed ? pack_group<true>() : pack_group<false>();
    return fits(range_);
  }

 private:
  // Number of groups that are prefetched ahead.
  static constexpr int64_t kAhead = 4;

  // The first of 16 lines and the first of 32 k. After the last line before line_end the walk goes to the next k.
  struct Place {
    int64_t line, k, line_end;
  };

  int64_t padded_lines() const { return (lines_ + kLines - 1) / kLines * kLines; }

  void go_on(Place& at) const {
    if (k_is_row_ && (at.line += kLines) < at.line_end) return;
    if (k_is_row_) at.line -= padded_lines();
    if ((at.k += 32) < kc_) return;
    at.k = 0;
    at.line += k_is_row_ ? padded_lines() : kLines;
    at.line_end += padded_lines();
  }

  void begin_group() {
    const auto square = [&](int64_t half) {
      const int64_t left = lines_ - now_.line, num_k = kc_ - now_.k - half;
      const auto* const data = reinterpret_cast<const float*>(part(x_, k_is_row_, now_.line, now_.k + half).data);
      const auto* const next = reinterpret_cast<const float*>(part(x_, k_is_row_, later_.line, later_.k + half).data);
      return Square{data, next, x_.ld, k_is_row_ ? num_k : left, first(k_is_row_ ? left : num_k)};
    };
    even_ = square(0);
    odd_ = square(16);
    to_ = packed_ + (now_.line / kLines * (padded(kc_) / 32) + now_.k / 32) * kStep;
    row_ = 0;
  }

  void end_group() {
    if (--groups_left_ == 0) return;
    go_on(now_);
    go_on(later_);
    begin_group();
  }

  HPMOE_AMX HPMOE_INLINE void pack_row() {
    split(row_of(even_, row_), row_of(odd_, row_), to_ + row_ * 32, range_);
    if (++row_ == 16) end_group();
  }

  template <bool kTransposed>
  HPMOE_AMX void pack_group() {
    alignas(64) uint16_t transposed[2][kTile];
    for (int64_t i = 0; i < 16 && kTransposed; ++i) {
      _mm512_store_ps(transposed[0] + i * 32, row_of(even_, i));
      _mm512_store_ps(transposed[1] + i * 32, row_of(odd_, i));
    }
    for (int64_t half = 0; half < 2 && kTransposed; ++half) transpose_tile(transposed[half]);
    Range range = range_;
    for (int64_t i = 0; i < 16; ++i) {
      const __m512 even = kTransposed ? _mm512_load_ps(transposed[0] + i * 32) : row_of(even_, i);
      const __m512 odd = kTransposed ? _mm512_load_ps(transposed[1] + i * 32) : row_of(odd_, i);
      split(even, odd, to_ + i * 32, range);
    }
    range_ = range;
    end_group();
  }

  Range range_;
  Matrix x_;
  bool k_is_row_;
  Square even_, odd_;
  Place now_, later_;
  int64_t lines_, kc_, groups_left_, row_, rows_a_turn_;
  uint16_t *packed_, *to_;
};

}  // namespace hpmoe

#include "amx.h"

#if HPMOE_HAS_AMX_TARGET

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "amx_sharing.h"
#include "amx_tiles.h"
#include "scratch.h"

namespace hpmoe {
namespace {

// Elements of b that are packed at a time, about KC deep: they stay in L2 while all panels of a are multiplied by them. A
// transposed a is packed too, MC lines at a time.
constexpr int64_t kPackedB = 512 * 512, MC = 512;
constexpr int64_t KC = 1024, KC_TRANSPOSED = 512;

// The location of a panel of a: packed memory, or the operand itself. Strides are in elements.
struct PanelOfA {
  const uint16_t* data;
  int64_t row, next_k, second_half;
};

HPMOE_AMX inline __mmask32 first(int64_t n) { return n >= 32 ? 0xFFFFFFFFu : n <= 0 ? 0u : (1u << n) - 1u; }

// Sets tile[line][k] = from[line * ld + k], and 0 past the last line and the last k.
HPMOE_AMX inline void copy_tile(const uint16_t* from, int64_t ld, int64_t lines, int64_t num_k, uint16_t* tile) {
  for (int64_t i = 0; i < 16; ++i) {
    const __m512i row = _mm512_maskz_loadu_epi16(i < lines ? first(num_k) : 0, from + (i < lines ? i * ld : 0));
    _mm512_store_si512(tile + i * 32, row);
  }
}

// Interleaves rows k and k + 1 into row k / 2 of two tiles [k / 2][line][k % 2] for every 32 lines, with zeros past the
// last line and for a missing row. Tiles of neighbouring lines are `stride` elements apart.
HPMOE_AMX void zip_rows(const uint16_t* even_row, const uint16_t* odd_row, int64_t lines, uint16_t* to, int64_t stride) {
  alignas(64) static const uint16_t kZip[2][32] = {
      {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
      {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
       24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
  const __m512i low = _mm512_load_si512(kZip[0]), high = _mm512_load_si512(kZip[1]);
  for (int64_t line = 0; line < lines; line += 32, to += stride) {
    const __mmask32 mask = first(lines - line);
    const __m512i even = even_row ? _mm512_maskz_loadu_epi16(mask, even_row + line) : _mm512_setzero_si512();
    const __m512i odd = odd_row ? _mm512_maskz_loadu_epi16(mask, odd_row + line) : _mm512_setzero_si512();
    _mm512_store_si512(to, _mm512_permutex2var_epi16(even, low, odd));
    _mm512_store_si512(to + kTile, _mm512_permutex2var_epi16(even, high, odd));
  }
}

const uint16_t* element(const Matrix& x, int64_t row, int64_t col) {
  return reinterpret_cast<const uint16_t*>(x.data) + row * x.ld + col;
}

// Packs panels of lines [line, line + lines) and k in [k0, k0 + kc) of an operand whose k goes along its rows. Each panel
// is kc_padded long.
HPMOE_AMX void pack_along(const Matrix& x, int64_t line, int64_t lines, int64_t k0, int64_t kc, bool transposed,
                          uint16_t* packed) {
  for (int64_t i = 0; i < lines; i += kPanel) {
    for (int64_t k = 0; k < kc; k += 32) {
      for (int64_t half = 0; half < 2; ++half, packed += kTile) {
        const int64_t skipped = i + half * 16;
        copy_tile(element(x, line + std::min(skipped, lines - 1), k0 + k), x.ld, lines - skipped, kc - k, packed);
        if (transposed) transpose_tile(packed);
      }
    }
  }
}

// Packs panels of an operand whose lines go along its rows; it reads row after row, in memory order.
HPMOE_AMX void pack_across(const Matrix& x, int64_t line, int64_t lines, int64_t k0, int64_t kc, bool transposed,
                           uint16_t* packed) {
  const int64_t stride = kPanel * padded(kc);
  for (int64_t block = 0; block < kc; block += 32) {
    uint16_t* const tiles = packed + kPanel * block;
    for (int64_t k = block; k < block + 32; k += 2) {
      const uint16_t* const even = k < kc ? element(x, k0 + k, line) : nullptr;
      const uint16_t* const odd = k + 1 < kc ? even + x.ld : nullptr;
      zip_rows(even, odd, lines, tiles + (k - block) * 16, stride);
    }
    for (int64_t i = 0; i < lines && transposed; i += kPanel) {
      transpose_tile(tiles + i / kPanel * stride);
      transpose_tile(tiles + i / kPanel * stride + kTile);
    }
  }
}

// Returns the panel of a that begins at `line`. A transposed a is packed MC lines at a time, when the first panel of
// these lines is asked for.
HPMOE_AMX PanelOfA panel_of_a(const Matrix& a, int64_t line, int64_t num_lines, int64_t k0, int64_t kc, uint16_t* packed) {
  const int64_t lines = std::min(kPanel, num_lines - line);
  if (!a.transposed && lines == kPanel && kc % 32 == 0) return {element(a, line, k0), a.ld, 32, 16 * a.ld};
  if (a.transposed) {
    const int64_t begin = line / MC * MC;
    if (line == begin) pack_across(a, begin, std::min(MC, num_lines - begin), k0, kc, true, packed);
    packed += (line - begin) * padded(kc);
  } else {
    pack_along(a, line, lines, k0, kc, false, packed);
  }
  return {packed, 32, 2 * kTile, kTile};
}

// Rows of the next panel of a, which are prefetched while the current panel is multiplied.
struct Ahead {
  const uint16_t* data;
  int64_t ld, rows;
};

// Returns the part of the next panel that block j of num_blocks prefetches.
Ahead share_ahead(const Matrix& a, int64_t line, int64_t num_lines, int64_t k0, int64_t j, int64_t num_blocks) {
  const int64_t rows = (kPanel + num_blocks - 1) / num_blocks, first = line + kPanel + j * rows;
  const int64_t last = std::min({first + rows, line + 2 * kPanel, num_lines});
  if (a.transposed || first >= last) return {nullptr, 0, 0};
  return {element(a, first, k0), a.ld, last - first};
}

// Adds a panel of a @ a panel of b to c[32, 32] (or to its upper half). All loads of tiles precede all products, because
// a core whose other hardware thread is busy does not overlap the two. The panel of a stays in L1, and b is read once for
// each panel of a.
template <bool kBothHalves>
HPMOE_AMX void multiply_panels(int64_t kc, const PanelOfA& a, const uint16_t* b, bool accumulate, float* c, int64_t ldc,
                               const Ahead& ahead) {
  const int64_t a_bytes = a.row * 2, c_bytes = ldc * 4;
  if (accumulate) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + 16, c_bytes);
    if (kBothHalves) _tile_loadd(2, c + 16 * ldc, c_bytes);
    if (kBothHalves) _tile_loadd(3, c + 16 * ldc + 16, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if (kBothHalves) _tile_zero(2);
    if (kBothHalves) _tile_zero(3);
  }
  const uint16_t* upper = a.data;
  for (int64_t k = 0; k < kc; k += 32, upper += a.next_k, b += 2 * kTile) {
    for (int64_t i = 0; i < ahead.rows; ++i) _mm_prefetch(ahead.data + i * ahead.ld + k, _MM_HINT_T1);
    _tile_stream_loadd(6, b, 64);
    _tile_stream_loadd(7, b + kTile, 64);
    _tile_loadd(4, upper, a_bytes);
    if (kBothHalves) _tile_loadd(5, upper + a.second_half, a_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (kBothHalves) _tile_dpbf16ps(2, 5, 6);
    if (kBothHalves) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + 16, c_bytes);
  if (kBothHalves) _tile_stored(2, c + 16 * ldc, c_bytes);
  if (kBothHalves) _tile_stored(3, c + 16 * ldc + 16, c_bytes);
}

// multiply_block() with few tiles in use: first the left half of c, then the right half.
template <bool kBothHalves>
HPMOE_AMX void multiply_in_few_tiles(int64_t kc, const PanelOfA& a, const uint16_t* b, bool accumulate, float* c,
                                     int64_t ldc, const Ahead& ahead) {
  const int64_t a_bytes = a.row * 2, c_bytes = ldc * 4;
  for (int64_t side = 0; side < 2; ++side, b += kTile, c += 16) {
    if (accumulate) {
      _tile_loadd(0, c, c_bytes);
      if (kBothHalves) _tile_loadd(1, c + 16 * ldc, c_bytes);
    } else {
      _tile_zero(0);
      if (kBothHalves) _tile_zero(1);
    }
    const uint16_t *upper = a.data, *tile = b;
    for (int64_t k = 0; k < kc; k += 32, upper += a.next_k, tile += 2 * kTile) {
      for (int64_t i = side; i < ahead.rows; i += 2) _mm_prefetch(ahead.data + i * ahead.ld + k, _MM_HINT_T1);
      _tile_stream_loadd(3, tile, 64);
      _tile_loadd(2, upper, a_bytes);
      _tile_dpbf16ps(0, 2, 3);
      if (kBothHalves) _tile_loadd(2, upper + a.second_half, a_bytes);
      if (kBothHalves) _tile_dpbf16ps(1, 2, 3);
    }
    _tile_stored(0, c, c_bytes);
    if (kBothHalves) _tile_stored(1, c + 16 * ldc, c_bytes);
  }
}

template <bool kBothHalves>
constexpr auto* way_to_multiply(bool in_few_tiles) {
  return in_few_tiles ? multiply_in_few_tiles<kBothHalves> : multiply_panels<kBothHalves>;
}

// Stores a block of sums to c at (row, col) in c's dtype, or adds the block to a float32 c.
HPMOE_AMX void store_block(const float* sums, int64_t ld, int64_t rows, int64_t cols, const Matrix& c, int64_t row,
                           int64_t col, bool accumulate) {
  const __mmask32 mask = first(cols);
  const auto low_mask = static_cast<__mmask16>(mask), high_mask = static_cast<__mmask16>(mask >> 16);
  for (int64_t i = 0; i < rows; ++i) {
    __m512 low = _mm512_loadu_ps(sums + i * ld), high = _mm512_loadu_ps(sums + i * ld + 16);
    char* const out = c.data + ((row + i) * c.ld + col) * element_size(c.dtype);
    if (accumulate) {
      low = _mm512_add_ps(low, _mm512_maskz_loadu_ps(low_mask, out));
      high = _mm512_add_ps(high, _mm512_maskz_loadu_ps(high_mask, out + 64));
    }
    if (c.dtype == Dtype::BFLOAT16) {
      _mm512_mask_storeu_epi16(out, mask, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
    } else if (c.dtype == Dtype::FLOAT16) {
      _mm256_mask_storeu_epi16(out, low_mask, _mm512_maskz_cvtps_ph(kAll, low, _MM_FROUND_TO_NEAREST_INT));
      _mm256_mask_storeu_epi16(out + 32, high_mask, _mm512_maskz_cvtps_ph(kAll, high, _MM_FROUND_TO_NEAREST_INT));
    } else {
      _mm512_mask_storeu_ps(out, low_mask, low);
      _mm512_mask_storeu_ps(out + 64, high_mask, high);
    }
  }
}

bool ask_for_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !(edx & kAmxBf16) || !(edx & kAmxTile)) return false;
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512bf16"))
    return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool has_amx() {
  static const bool allowed = ask_for_amx();
  return allowed;
}

HPMOE_AMX void amx_gemm(const Sizes& s, const Matrix& a, const Matrix& b, const Matrix& c, bool accumulate) {
  const int64_t k_step = even_steps(s.k, a.transposed ? KC_TRANSPOSED : KC);
  const int64_t n_step = even_steps(s.n, kPackedB / k_step);
  // Memory for the sums of one block, or of all rows if k takes several steps.
  const bool many_k = s.k > k_step;
  const int64_t ld = many_k ? n_step : kPanel, sum_rows = many_k ? padded(s.m) : kPanel;
  thread_local Scratch<uint16_t> scratch;
  uint16_t* const of_b = scratch.at_least(n_step * k_step + (a.transposed ? padded(std::min(s.m, MC)) : kPanel) * k_step +
                                          2 * sum_rows * ld);
  float* const sum = reinterpret_cast<float*>(of_b + n_step * k_step);
  uint16_t* const of_a = of_b + n_step * k_step + 2 * sum_rows * ld;
  configure_tiles();
  for (int64_t j0 = 0; j0 < s.n; j0 += n_step) {
    const int64_t nc = std::min(n_step, s.n - j0), num_blocks = padded(nc) / kPanel;
    for (int64_t k0 = 0; k0 < s.k; k0 += k_step) {
      const int64_t kc = std::min(k_step, s.k - k0);
      const bool is_last = k0 + kc == s.k;
      (b.transposed ? pack_along : pack_across)(b, j0, nc, k0, kc, b.transposed, of_b);
      for (int64_t i = 0; i < s.m; i += kPanel) {
        const int64_t rows = std::min(kPanel, s.m - i);
        const PanelOfA panel = panel_of_a(a, i, s.m, k0, kc, of_a);
        const bool is_shared = core_is_shared();
        const auto multiply = rows > 16 ? way_to_multiply<true>(is_shared) : way_to_multiply<false>(is_shared);
        for (int64_t j = 0; j < num_blocks; ++j) {
          float* const block = sum + (many_k ? i * ld + j * kPanel : 0);
          const int64_t col = j0 + j * kPanel, cols = std::min(kPanel, s.n - col);
          if (is_last) prefetch_block(rows, c, i, col);
          multiply(kc, panel, of_b + j * kPanel * padded(kc), k0 > 0, block, ld, share_ahead(a, i, s.m, k0, j, num_blocks));
          if (is_last) store_block(block, ld, rows, cols, c, i, col, accumulate);
        }
      }
    }
  }
  _tile_release();
}

}  // namespace hpmoe

#else

namespace hpmoe {

bool has_amx() { return false; }
void amx_gemm(const Sizes&, const Matrix&, const Matrix&, const Matrix&, bool) {}

}  // namespace hpmoe

#endif

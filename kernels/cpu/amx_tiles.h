// The shape of AMX tiles, and step lengths that fit the caches.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "convert.h"
#include "gemm.h"

#define HPMOE_AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")))

namespace hpmoe {

// A tile is 16 rows of 64 bytes. For a: [16 lines][32 k]. For b: [16 pairs of k][16 lines][2]. A panel is 32 lines of a
// or b, two tiles for every 32 k. A block of c is the product of two panels, four tiles of 16 x 16 float32.
constexpr int64_t kTile = 16 * 32, kPanel = 32;

constexpr int64_t padded(int64_t n) { return (n + 31) / 32 * 32; }

// Returns the step length, in whole panels, that divides n into equal steps of about `length`, at most half as much
// again. Equal steps avoid one step of `length` and a short rest.
constexpr int64_t even_steps(int64_t n, int64_t length) {
  const int64_t steps = std::max<int64_t>(1, (n + length / 2) / length);
  return std::max(kPanel, padded((n + steps - 1) / steps));
}

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

HPMOE_AMX inline void configure_tiles() {
  const TileConfig config;
  asm volatile("" : : "r"(&config) : "memory");  // the intrinsic reads more than its type says
  _tile_loadconfig(&config);
}

constexpr uint16_t kAll = 0xFFFF;  // without a mask GCC warns of undefined elements

// Transposes a tile of 16 x 16 pairs.
HPMOE_AMX inline void transpose_tile(uint16_t* tile) {
  __m512i x[16], y[16];
  for (int i = 0; i < 16; ++i) x[i] = _mm512_load_si512(tile + i * 32);
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_maskz_unpacklo_epi32(kAll, x[i], x[i + 1]);
    y[i + 1] = _mm512_maskz_unpackhi_epi32(kAll, x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; ++j) {
      x[i + 2 * j] = _mm512_maskz_unpacklo_epi64(kAll & 0xFF, y[i + j], y[i + j + 2]);
      x[i + 2 * j + 1] = _mm512_maskz_unpackhi_epi64(kAll & 0xFF, y[i + j], y[i + j + 2]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    y[i] = _mm512_maskz_shuffle_i32x4(kAll, x[i], x[i + 4], 0x88);
    y[i + 4] = _mm512_maskz_shuffle_i32x4(kAll, x[i], x[i + 4], 0xDD);
    y[i + 8] = _mm512_maskz_shuffle_i32x4(kAll, x[i + 8], x[i + 12], 0x88);
    y[i + 12] = _mm512_maskz_shuffle_i32x4(kAll, x[i + 8], x[i + 12], 0xDD);
  }
  for (int i = 0; i < 8; ++i) {
    _mm512_store_si512(tile + i * 32, _mm512_maskz_shuffle_i32x4(kAll, y[i], y[i + 8], 0x88));
    _mm512_store_si512(tile + (i + 8) * 32, _mm512_maskz_shuffle_i32x4(kAll, y[i], y[i + 8], 0xDD));
  }
}

// Returns true if whole panels of c are whole cache lines, so that they can be stored past the caches without a read
// first.
inline bool can_stream(const Matrix& c) {
  return c.streamed &&
         (reinterpret_cast<uintptr_t>(c.data) | static_cast<uintptr_t>(c.ld * element_size(c.dtype))) % 64 == 0;
}

// Prefetches the lines of a block of c for writing.
inline void prefetch_block(int64_t rows, const Matrix& c, int64_t row, int64_t col) {
  for (int64_t i = row; i < row + rows; ++i) __builtin_prefetch(c.data + (i * c.ld + col) * element_size(c.dtype), 1);
}

}  // namespace hpmoe

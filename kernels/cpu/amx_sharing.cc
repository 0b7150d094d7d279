#include "amx_sharing.h"

#include <atomic>

#include "amx.h"

#if HPMOE_HAS_AMX_TARGET

#include <x86intrin.h>

#include "amx_tiles.h"

namespace hpmoe {
namespace {

std::atomic<Sharing> g_assumed{Sharing::MEASURED};

HPMOE_AMX void zero_tiles() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
}

// Returns the cycles of a number of products of two loaded tiles each, in three tiles or in eight.
template <bool kEightTiles>
HPMOE_AMX uint64_t time_products() {
  alignas(64) static const uint16_t tile[kTile] = {};
  zero_tiles();
  const uint64_t begin = __rdtsc();
  for (int i = 0; i < 16; ++i) {
    if (kEightTiles) {
      _tile_loadd(4, tile, 64);
      _tile_loadd(5, tile, 64);
      _tile_loadd(6, tile, 64);
      _tile_loadd(7, tile, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    } else {
      for (int j = 0; j < 4; ++j) {
        _tile_loadd(1, tile, 64);
        _tile_loadd(2, tile, 64);
        _tile_dpbf16ps(0, 1, 2);
      }
    }
  }
  _mm_lfence();
  return __rdtsc() - begin;
}

}  // namespace

HPMOE_AMX bool core_is_shared() {
  constexpr uint64_t kKeptFor = 1 << 21;  // cycles
  thread_local uint64_t measured = 0;
  thread_local bool is_shared = false;
  const Sharing assumed = g_assumed.load(std::memory_order_relaxed);
  if (assumed != Sharing::MEASURED) return assumed == Sharing::YES;
  if (__rdtsc() - measured < kKeptFor) return is_shared;
  uint64_t few = ~uint64_t{0}, eight = few;
  for (int i = 0; i < 2; ++i) {
    few = std::min(few, time_products<false>());
    eight = std::min(eight, time_products<true>());
  }
  is_shared = 2 * eight > 3 * few;
  zero_tiles();
  measured = __rdtsc();
  return is_shared;
}

void assume_sharing(Sharing sharing) { g_assumed.store(sharing, std::memory_order_relaxed); }

}  // namespace hpmoe

#else

namespace hpmoe {

bool core_is_shared() { return false; }
void assume_sharing(Sharing) {}

}  // namespace hpmoe

#endif

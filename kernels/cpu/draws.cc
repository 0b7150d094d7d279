// Random numbers of a seed and their positions, as in hpmoe/tile_ops/draws.py.
#include "bodies.h"

namespace hpmoe {
namespace {

// Returns the first word of philox2x32-10 for the counters (row, col).
uint32_t philox(uint32_t left, uint32_t right, uint32_t key) {
  for (int i = 0; i < 10; ++i, key += 0x9E3779B9u) {
    const uint64_t product = uint64_t{left} * 0xD256D193u;
    left = static_cast<uint32_t>(product >> 32) ^ right ^ key;
    right = static_cast<uint32_t>(product);
  }
  return left;
}

}  // namespace

Code draw(const Frame& frame) {
  Writer out(frame.view(0));
  const int32_t seed = __atomic_load_n(reinterpret_cast<const int32_t*>(frame.element(1, 0, frame.first_col(1))),
                                       __ATOMIC_RELAXED);
  const uint32_t key = static_cast<uint32_t>(seed) ^
                       static_cast<uint32_t>(params::Stream::of(frame.op).stream) * 0x85EBCA6Bu;
  for_each_chunk(frame.unit.rows, frame.task.cols, [&](int64_t row, int64_t col, int64_t n) {
    float* const to = out.chunk(row, col);
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t word = philox(frame.unit.start + row, frame.first_col(0) + col + i, key);
      to[i] = (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f;
    }
    out.store(row, col, n);
  });
  return Code::OK;
}

}  // namespace hpmoe

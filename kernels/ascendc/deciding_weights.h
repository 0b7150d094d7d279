// The weights that decide which entries are dropped, in their stored dtype, and their order.
#pragma once

#include "prologue_unit.h"

namespace hpmoe {

struct DecidingWeights {
  uint64_t address;
  int32_t dtype;

  __aicore__ inline int32_t size() const { return element_bytes(dtype); }

  // Returns the bits of a weight, in a piece of UB or in global memory; no task writes weights. Bits of half precision
  // are shifted to the upper half.
  __aicore__ inline uint32_t bits(const Words& loaded, int32_t i) const {
    if (size() == 4) return static_cast<uint32_t>(loaded.GetValue(i));
    return static_cast<uint32_t>(loaded.ReinterpretCast<uint16_t>().GetValue(i)) << 16;
  }
  __aicore__ inline uint32_t bits(int32_t entry) const {
    if (size() == 4) return global_at<uint32_t>(address).GetValue(entry);
    return static_cast<uint32_t>(global_at<uint16_t>(address).GetValue(entry)) << 16;
  }

  __aicore__ inline bool is_nan(uint32_t bits) const {
    return (bits & ~kSign) > (static_cast<Dtype>(dtype) == Dtype::FLOAT16 ? 0x7C000000u : 0x7F800000u);
  }
  // Returns an integer with the order of the weights, greater than 0 and equal for both zeros.
  __aicore__ inline uint32_t key(uint32_t bits) const {
    if ((bits & ~kSign) == 0) return kSign;
    const uint32_t key = (bits & kSign) != 0 ? ~bits : bits | kSign;
    return size() == 4 ? key : key & 0xFFFF0000u;
  }
  __aicore__ inline int32_t lowest_digit() const { return size() == 4 ? 0 : 16; }

 private:
  static constexpr uint32_t kSign = 0x80000000u;
};

__aicore__ inline DecidingWeights deciding_weights(const PrologueUnit& on, const RouteWords& route) {
  if (!keeps_heaviest(route)) return {0, 0};
  return {on.buffer(route.weights_buffer), on.rank.image.buffer(route.weights_buffer).dtype};
}

}  // namespace hpmoe

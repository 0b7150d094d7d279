// The matrix core of the 950: the layout of operands in L1, loads to L0A and L0B, and signals.
//
// L1, L0A and L0B all hold columns of fractals. One instruction loads a part of an operand and transposes it if its k is
// down: fractal by fractal in half precision, two horizontally adjacent fractals at a time in float32, two vertically
// adjacent ones in int8.
#pragma once

#include "fractals.h"
#include "product.h"
#include "ring.h"

namespace hpmoe {

constexpr bool kHasFp8Products = true;
constexpr int32_t kBytesScalesA = kTileM * kDeepBytesL1 / kMxBlock, kBytesScalesB = kTileN * kDeepBytesL1 / kMxBlock;
constexpr int32_t kBytesOfScales = 2 * (kBytesScalesA + kBytesScalesB);  // of L1

// True if Mmad must assume an even number of fractals in each row of L0A.
template <class T>
constexpr bool kAlignsDepth = false;

// Elements of a column of fractals in L1.
template <class T>
__aicore__ inline int32_t l1_pitch(int32_t lines, int32_t depth, bool k_is_down) {
  return k_is_down ? depth : lines;
}

// Loads rows into L1 in the layout that load_l0_and_scales reads.
template <class T>
__aicore__ inline void load_l1(const Fractals<T>& to, uint64_t from, int32_t rows, int32_t cols, int32_t ld,
                               bool k_is_down) {
  copy_rows(to, from, rows, cols, ld, fractals_down<T>(rows, k_is_down));
}

// Loads the scales of mxfp8 rows of k numbers into L1: a block of 32 bytes holds two adjacent scales of 16 rows, and
// blocks of the same rows are adjacent.
__aicore__ inline void load_scales(const Fractals<int8_t>& to, uint64_t from, int32_t rows, int32_t k, int32_t ld) {
  AscendC::Dn2NzParams params;
  params.dnNum = 1;
  params.nValue = static_cast<uint16_t>(k / kMxPair);
  params.dValue = static_cast<uint32_t>(rows);
  params.srcDValue = static_cast<uint64_t>(ld / 2);
  params.dstNzC0Stride = static_cast<uint16_t>(k / kMxPair);
  params.dstNzNStride = 1;
  AscendC::DataCopy(to.ReinterpretCast<half>(), global_at<half>(from), params);
}

template <class T>
__aicore__ inline AscendC::LoadData2DParamsV2 l0_params(const Part& part) {
  const int32_t deep = (part.k + kFractalCols<T> - 1) / kFractalCols<T>;
  AscendC::LoadData2DParamsV2 params;  // m is down and k to the right in L1, for both operands
  params.mStartPosition = part.k_is_down ? part.k1 / kFractal : part.first_line;
  params.mStep = static_cast<uint16_t>(part.k_is_down ? fractals_down<T>(part.k, true) : part.lines);
  params.kStartPosition = (part.k_is_down ? part.first_line * kFractal : part.k1) / kFractalCols<T>;
  params.kStep = static_cast<uint16_t>(part.k_is_down ? part.lines * kFractal / kFractalCols<T> : deep);
  params.srcStride = part.pitch;
  params.dstStride = static_cast<uint16_t>(part.lines);
  params.ifTranspose = part.k_is_down;
  return params;
}
template <class T>
__aicore__ inline void load_l0(const Fractals<T>& to, const Fractals<T>& from, const Part& part) {
  AscendC::LoadData(to, from, l0_params<T>(part));
}
// Loads a part of an operand with scales to L0; its rows are `deep` scales long in L1.
__aicore__ inline void load_l0_and_scales(const Fractals<int8_t>& to, const Fractals<int8_t>& from,
                                          const Fractals<int8_t>& scales, const Part& part, int32_t deep) {
  AscendC::LoadData2DMxParams params;
  params.xStartPosition = static_cast<uint16_t>(part.first_line);
  params.yStartPosition = static_cast<uint16_t>(part.k1 / kMxPair);
  params.xStep = static_cast<uint8_t>(part.lines);
  params.yStep = static_cast<uint8_t>(part.k / kMxPair);
  params.srcStride = static_cast<uint16_t>(deep / kMxPair);
  params.dstStride = static_cast<uint16_t>(part.k / kMxPair);
  AscendC::LoadData(to.ReinterpretCast<fp8_e4m3fn_t>(), from.ReinterpretCast<fp8_e4m3fn_t>(),
                    scales.ReinterpretCast<fp8_e8m0_t>(), l0_params<int8_t>(part), params);
}

__aicore__ inline void multiply_fp8(const AscendC::LocalTensor<float>& out, const Fractals<int8_t>& a,
                                    const Fractals<int8_t>& b, const AscendC::MmadParams& params, bool has_scales) {
  const auto left = a.ReinterpretCast<fp8_e4m3fn_t>(), right = b.ReinterpretCast<fp8_e4m3fn_t>();
  if (has_scales) {
    AscendC::MmadMx(out, left, right, params);
  } else {
    AscendC::Mmad(out, left, right, params);
  }
}
template <class T>
__aicore__ inline void load_l0a(const Fractals<T>& to, const Fractals<T>& from, const Part& part) {
  load_l0(to, from, part);
}
template <class T>
__aicore__ inline void load_l0b(const Fractals<T>& to, const Fractals<T>& from, const Part& part) {
  load_l0(to, from, part);
}

// Adds to counters after all earlier results are written. An AIC has no MTE3 here, so the scalar unit waits for Fixpipe
// and adds by itself; other pipes continue.
class CounterAdder {
 public:
  static constexpr int32_t kBytesOfL1 = 0;

  __aicore__ inline void init(AscendC::TPipe* pipe, const AscendC::LocalTensor<int32_t>&) {
    written_ = pipe->AllocEventID<AscendC::HardEvent::FIX_S>();
  }
  __aicore__ inline void end() {}

  __aicore__ inline void add(uint64_t counter, int32_t amount) {
    AscendC::SetFlag<AscendC::HardEvent::FIX_S>(written_);
    AscendC::WaitFlag<AscendC::HardEvent::FIX_S>(written_);
    AscendC::AtomicAdd(reinterpret_cast<__gm__ int32_t*>(counter), amount);
  }

 private:
  AscendC::TEventID written_;
};

}  // namespace hpmoe

// Products of fp8 with a scale for each 32 numbers, on a 950: scales from global memory to L1 and to L0A_MX and L0B_MX,
// and MmadMx. Sources, in asc-devkit: the documents of DataCopy (DN2NZ), LoadData (MX) and MmadMx, and the sample
// mmad_mx. No document states the distance between MmadMx's rows of 16 scales; as in the sample, they are adjacent.
#pragma once

#include "cube.h"

namespace AscendC {

struct Dn2NzParams {
  Dn2NzParams() = default;
  uint16_t dnNum = 0, nValue = 0;
  uint32_t dValue = 0;
  uint64_t srcDnMatrixStride = 0, srcDValue = 0;
  uint16_t dstNzC0Stride = 0, dstNzNStride = 0;
  uint32_t dstNzMatrixStride = 0;
};

struct LoadData2DMxParams {
  LoadData2DMxParams() = default;
  uint16_t xStartPosition = 0, yStartPosition = 0;
  uint8_t xStep = 0, yStep = 0;
  uint16_t srcStride = 0, dstStride = 0;
};

// Number n of row d goes to place d % c0 of block d / c0 * dstNzC0Stride + n * dstNzNStride; places past the rows are 0.
template <class T>
void DataCopy(const LocalTensor<T>& to, const GlobalTensor<T>& from, const Dn2NzParams& p) {
  constexpr uint32_t c0 = detail::kBlock / sizeof(T);
  emulator::Core& core = emulator::current();
  core.need(true, "DataCopy of columns to fractals");
  emulator::require(emulator::kIs950, "DataCopy of columns to fractals is of the 950");
  emulator::require(to.memory() == emulator::Memory::L1, "DataCopy of columns to fractals goes to L1");
  emulator::require(p.dnNum == 1, "DataCopy of columns to fractals: one matrix");
  emulator::require(p.nValue <= 16384 && p.dValue < (1u << 21) && p.srcDValue >= 1 && p.dstNzC0Stride >= 1 &&
                        p.dstNzC0Stride <= 16384 && p.dstNzNStride >= 1 && p.dstNzNStride <= 16384,
                    "DataCopy of columns to fractals: a parameter is out of range");
  emulator::require(p.dValue <= c0 || p.nValue == 0 || uint32_t{p.nValue - 1u} * p.dstNzNStride < p.dstNzC0Stride,
                    "DataCopy of columns to fractals: ", p.nValue, " columns reach into the next 16 rows, ", p.dstNzC0Stride,
                    " blocks later");
  core.work(PIPE_MTE2, "DataCopy of columns to fractals", [=, &core, since = core.loads_since] {
    if (p.nValue == 0 || p.dValue == 0) return;
    const uint64_t lines = (p.dValue + c0 - 1) / c0;
    const uint64_t last = (lines - 1) * p.dstNzC0Stride + uint64_t{p.nValue - 1u} * p.dstNzNStride;
    auto* const out = to.bytes(core, (last + 1) * detail::kBlock, "DataCopy of columns to fractals");
    for (uint64_t line = 0; line < lines; ++line)
      for (uint64_t n = 0; n < p.nValue; ++n)
        std::memset(out + (line * p.dstNzC0Stride + n * p.dstNzNStride) * detail::kBlock, 0, detail::kBlock);
    for (uint64_t d = 0; d < p.dValue; ++d) {
      const auto row = emulator::loaded(core, since, from.GetPhyAddr() + d * p.srcDValue, p.nValue * sizeof(T),
                                        "DataCopy of columns to fractals");
      for (uint64_t n = 0; n < p.nValue; ++n)
        std::copy_n(row.begin() + n * sizeof(T), sizeof(T),
                    out + (d / c0 * p.dstNzC0Stride + n * p.dstNzNStride) * detail::kBlock + d % c0 * sizeof(T));
    }
    core.counts.gm_to_l1 += int64_t{p.nValue} * p.dValue * static_cast<int64_t>(sizeof(T));
    core.counts.to_l1.add(int64_t{p.nValue} * p.dValue * static_cast<int64_t>(sizeof(T)));
  });
}

// Loads fractals, and xStep times yStep blocks of 16 x 2 scales to the fractals' address divided by 16.
template <class T>
void LoadData(const LocalTensor<T>& to, const LocalTensor<T>& from, const LocalTensor<fp8_e8m0_t>& scales,
              const LoadData2DParamsV2& p, const LoadData2DMxParams& mx) {
  static_assert(std::is_same_v<T, fp8_e4m3fn_t>, "fractals the kernel uses");
  LoadData(to, from, p);
  emulator::Core& core = emulator::current();
  emulator::require(scales.memory() == emulator::Memory::L1, "LoadData: scales are in L1");
  core.work(PIPE_MTE1, "LoadData of scales", [=, &core] {
    if (mx.xStep == 0 || mx.yStep == 0) return;
    const uint64_t first = uint64_t{mx.xStartPosition} * mx.srcStride + mx.yStartPosition;
    const uint64_t last_in = first + uint64_t{mx.xStep - 1u} * mx.srcStride + mx.yStep - 1;
    const uint64_t last_out = uint64_t{mx.xStep - 1u} * mx.dstStride + mx.yStep - 1;
    std::vector<uint8_t>& memory = core.scales(to.memory());
    const uint64_t begin = to.offset() / 16;
    emulator::require(to.offset() % 512 == 0 && begin + (last_out + 1) * detail::kBlock <= memory.size(),
                      "LoadData: scales reach past L0A_MX or L0B_MX");
    const uint8_t* const in = scales.bytes(core, (last_in + 1) * detail::kBlock, "LoadData of scales");
    for (uint64_t x = 0; x < mx.xStep; ++x)
      std::copy_n(in + (first + x * mx.srcStride) * detail::kBlock, mx.yStep * detail::kBlock,
                  memory.data() + begin + x * mx.dstStride * detail::kBlock);
  });
}

namespace detail {

// Multiplies numbers, in columns of `lines` fractals that are 32 deep, by the scale of each row of 32.
inline void scale_blocks(std::vector<float>& numbers, const uint8_t* scales, uint64_t lines, uint64_t deep) {
  for (uint64_t block = 0; block < deep; ++block)
    for (uint64_t row = 0; row < lines * 16; ++row) {
      const uint8_t code = scales[(row / 16 * (deep / 2) + block / 2) * kBlock + row % 16 * 2 + block % 2];
      const float scale = code == 255 ? std::nanf("") : std::ldexp(1.0f, code - 127);
      float* const from = numbers.data() + (block * lines * 16 + row) * 32;
      for (int i = 0; i < 32; ++i) from[i] *= scale;
    }
}

}  // namespace detail

// Computes c[m, n] = (a[m, k] * scales of a[m, k / 32]) @ (b[k, n] * scales of b[k / 32, n]), or adds it; k is a multiple
// of 64.
template <class C, class A, class B>
void MmadMx(const LocalTensor<C>& c, const LocalTensor<A>& a, const LocalTensor<B>& b, const MmadParams& p) {
  static_assert(std::is_same_v<A, fp8_e4m3fn_t> && std::is_same_v<B, A> && std::is_same_v<C, float>,
                "products the kernel uses");
  emulator::require(emulator::kIs950, "MmadMx is of the 950");
  emulator::require(p.k % 64 == 0, "MmadMx: a size is out of range: k is ", p.k);
  emulator::require(a.offset() % 1024 == 0 && b.offset() % 1024 == 0, "MmadMx: operands begin at multiples of 1024 bytes");
  const uint64_t m = (p.m + 15u) / 16, n = (p.n + 15u) / 16, deep = detail::depth_of<A>(p).num_k;
  detail::multiply_later("MmadMx", c, a, b, p, [=](emulator::Core& core, uint64_t of_a, uint64_t of_b) {
    auto wide_a = detail::widen(a, of_a, core, false), wide_b = detail::widen(b, of_b, core, false);
    detail::scale_blocks(wide_a, core.scales(emulator::Memory::L0A).data() + a.offset() / 16, m, deep);
    detail::scale_blocks(wide_b, core.scales(emulator::Memory::L0B).data() + b.offset() / 16, n, deep);
    return std::pair(std::move(wide_a), std::move(wide_b));
  });
}

}  // namespace AscendC

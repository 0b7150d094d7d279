// DataCopy and DataCopyPad: between global memory and UB or L1, contiguous, in blocks, and from rows to fractals.
#pragma once

#include <algorithm>

#include "sync.h"

namespace AscendC {

struct DataCopyExtParams {
  DataCopyExtParams() = default;
  DataCopyExtParams(uint16_t count, uint32_t len, uint32_t src, uint32_t dst, uint32_t rsvIn)
      : blockCount(count), blockLen(len), srcStride(src), dstStride(dst), rsv(rsvIn) {}
  uint16_t blockCount = 1;
  uint32_t blockLen = 0, srcStride = 0, dstStride = 0, rsv = 0;
};

template <class T>
struct DataCopyPadExtParams {
  DataCopyPadExtParams() = default;
  bool isPad = false;
  uint8_t leftPadding = 0, rightPadding = 0;
  T paddingValue{};
};

struct Nd2NzParams {
  Nd2NzParams() = default;
  Nd2NzParams(uint16_t ndNumIn, uint16_t nValueIn, uint16_t dValueIn, uint16_t srcNdMatrixStrideIn, uint16_t srcDValueIn,
              uint16_t dstNzC0StrideIn, uint16_t dstNzNStrideIn, uint16_t dstNzMatrixStrideIn)
      : ndNum(ndNumIn),
        nValue(nValueIn),
        dValue(dValueIn),
        srcNdMatrixStride(srcNdMatrixStrideIn),
        srcDValue(srcDValueIn),
        dstNzC0Stride(dstNzC0StrideIn),
        dstNzNStride(dstNzNStrideIn),
        dstNzMatrixStride(dstNzMatrixStrideIn) {}
  uint16_t ndNum = 0, nValue = 0, dValue = 0, srcNdMatrixStride = 0, srcDValue = 0, dstNzC0Stride = 0, dstNzNStride = 0,
           dstNzMatrixStride = 0;
};

namespace detail {

constexpr uint32_t kBlock = 32;

inline uint32_t round_up(uint32_t value, uint32_t to) { return (value + to - 1) / to * to; }

inline void count_in(emulator::Core& core, emulator::Memory to, int64_t bytes) {
  (to == emulator::Memory::UB ? core.counts.gm_to_ub : core.counts.gm_to_l1) += bytes;
}

inline void need_core_of(emulator::Core& core, emulator::Memory memory, const char* what) {
  emulator::require(memory == emulator::Memory::UB || memory == emulator::Memory::L1, what, " goes to UB or L1");
  core.need(memory == emulator::Memory::L1, what);
}

inline void check_blocks(const DataCopyExtParams& p, const char* what) {
  emulator::require(p.blockCount >= 1 && p.blockCount <= 4095, what, ": blockCount is ", p.blockCount,
                    ", 1 to 4095 it may be");
  emulator::require(p.blockLen >= 1 && p.blockLen < (1u << 21), what, ": blockLen is ", p.blockLen);
}

}  // namespace detail

// Contiguous; a multiple of 32 bytes.
template <class T>
void DataCopy(const LocalTensor<T>& to, const GlobalTensor<T>& from, uint32_t count) {
  emulator::Core& core = emulator::current();
  detail::need_core_of(core, to.memory(), "DataCopy");
  const uint64_t bytes = uint64_t{count} * sizeof(T);
  emulator::require(bytes % detail::kBlock == 0, "DataCopy: ", bytes, " bytes are no multiple of 32");
  core.work(PIPE_MTE2, "DataCopy", [=, &core, since = core.loads_since] {
    const auto in = emulator::loaded(core, since, from.GetPhyAddr(), bytes, "DataCopy");
    std::copy(in.begin(), in.end(), to.bytes(core, bytes, "DataCopy"));
    detail::count_in(core, to.memory(), static_cast<int64_t>(bytes));
  });
}

template <class T>
void DataCopy(const GlobalTensor<T>& to, const LocalTensor<T>& from, uint32_t count) {
  emulator::Core& core = emulator::current();
  detail::need_core_of(core, from.memory(), "DataCopy");
  emulator::require(!emulator::kIs950 || from.memory() != emulator::Memory::L1,
                    "DataCopy: a 950 has no way from L1 to global memory");
  const uint64_t bytes = uint64_t{count} * sizeof(T);
  emulator::require(bytes % detail::kBlock == 0, "DataCopy: ", bytes, " bytes are no multiple of 32");
  const emulator::Atomic atomic = core.atomic;
  core.work(PIPE_MTE3, "DataCopy", [=, &core] {
    const uint8_t* in = from.bytes(core, bytes, "DataCopy");
    emulator::store(core, atomic, reinterpret_cast<uint8_t*>(to.GetPhyAddr()), in, bytes, "DataCopy");
    (from.memory() == emulator::Memory::UB ? core.counts.ub_to_gm : core.counts.l1_to_gm) += static_cast<int64_t>(bytes);
  });
}

// Blocks of any length. srcStride is the gap in bytes of global memory; in UB each block begins at a multiple of 32
// bytes, and dstStride is the gap in units of 32 bytes. The padding of a block in UB is undefined.
template <class T>
void DataCopyPad(const LocalTensor<T>& to, const GlobalTensor<T>& from, const DataCopyExtParams& p,
                 const DataCopyPadExtParams<T>& padding) {
  emulator::Core& core = emulator::current();
  core.need(false, "DataCopyPad");
  detail::check_blocks(p, "DataCopyPad");
  emulator::require(!padding.isPad, "DataCopyPad: the kernel asks for no padding");
  const auto* const first = reinterpret_cast<const uint8_t*>(from.GetPhyAddr());
  const bool looks = core.global.region_of(first, p.blockLen, "DataCopyPad").name == "the counters";
  for (uint32_t i = 0; i < p.blockCount && looks; ++i) core.note_look(first + i * (uint64_t{p.blockLen} + p.srcStride));
  core.note_copy(int64_t{p.blockCount} * p.blockLen);
  core.work(PIPE_MTE2, "DataCopyPad", [=, &core, since = core.loads_since] {
    const uint32_t padded = detail::round_up(p.blockLen, detail::kBlock), step = padded + p.dstStride * detail::kBlock;
    uint8_t* const out = to.bytes(core, uint64_t{p.blockCount - 1u} * step + padded, "DataCopyPad");
    const auto* in = reinterpret_cast<const uint8_t*>(from.GetPhyAddr());
    for (uint32_t i = 0; i < p.blockCount; ++i) {
      const auto block = emulator::loaded(core, since, in + i * (uint64_t{p.blockLen} + p.srcStride), p.blockLen,
                                          "DataCopyPad");
      std::copy(block.begin(), block.end(), out + i * step);
      std::memset(out + i * step + p.blockLen, 0xFF, padded - p.blockLen);
    }
    if (looks) return;
    core.counts.gm_to_ub += int64_t{p.blockCount} * p.blockLen;
    core.counts.to_ub.add(int64_t{p.blockCount} * p.blockLen);
  });
}

template <class T>
void DataCopyPad(const GlobalTensor<T>& to, const LocalTensor<T>& from, const DataCopyExtParams& p) {
  emulator::Core& core = emulator::current();
  core.need(false, "DataCopyPad");
  detail::check_blocks(p, "DataCopyPad");
  const emulator::Atomic atomic = core.atomic;
  if (atomic == emulator::Atomic::ADD_INT32) {
    core.note_signal(to.GetPhyAddr(), core.global.region_of(to.GetPhyAddr(), sizeof(T), "DataCopyPad").rank != core.rank);
  } else {
    core.note_copy(int64_t{p.blockCount} * p.blockLen);
  }
  core.work(PIPE_MTE3, "DataCopyPad", [=, &core] {
    const uint32_t padded = detail::round_up(p.blockLen, detail::kBlock), step = padded + p.srcStride * detail::kBlock;
    const uint8_t* const in = from.bytes(core, uint64_t{p.blockCount - 1u} * step + padded, "DataCopyPad");
    auto* out = reinterpret_cast<uint8_t*>(to.GetPhyAddr());
    for (uint32_t i = 0; i < p.blockCount; ++i)
      emulator::store(core, atomic, out + i * (uint64_t{p.blockLen} + p.dstStride), in + i * step, p.blockLen,
                      "DataCopyPad");
    core.counts.ub_to_gm += int64_t{p.blockCount} * p.blockLen;
    if (atomic != emulator::Atomic::ADD_INT32) core.counts.from_ub.add(int64_t{p.blockCount} * p.blockLen);
  });
}

// Rows of global memory as fractals of L1. A block j has 32 bytes of columns (32 int8, 16 half-precision or 8 float32
// numbers); row i of block j goes to j * dstNzC0Stride + i * dstNzNStride, in units of 32 bytes. The last block is padded
// with zeros.
template <class T>
void DataCopy(const LocalTensor<T>& to, const GlobalTensor<T>& from, const Nd2NzParams& p) {
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4, "fractals the kernel uses");
  constexpr uint32_t c0 = detail::kBlock / sizeof(T);
  emulator::Core& core = emulator::current();
  core.need(true, "DataCopy of rows to fractals");
  emulator::require(to.memory() == emulator::Memory::L1, "DataCopy of rows to fractals goes to L1");
  emulator::require(p.ndNum == 1, "DataCopy of rows to fractals: one matrix");
  emulator::require(p.nValue <= 16384 && p.srcDValue >= 1 && p.dstNzC0Stride >= 1 && p.dstNzC0Stride <= 16384 &&
                        p.dstNzNStride >= 1 && p.dstNzNStride <= 16384,
                    "DataCopy of rows to fractals: a parameter is out of range");
  const uint32_t num_c0 = (p.dValue + c0 - 1) / c0;
  emulator::require(num_c0 <= 1 || p.nValue == 0 || uint32_t{p.nValue - 1u} * p.dstNzNStride < p.dstNzC0Stride,
                    "DataCopy of rows to fractals: ", p.nValue, " rows of one column of fractals reach into the next, ",
                    p.dstNzC0Stride, " blocks later");
  core.work(PIPE_MTE2, "DataCopy of rows to fractals", [=, &core, since = core.loads_since] {
    if (num_c0 == 0 || p.nValue == 0) return;
    const uint64_t last = uint64_t{num_c0 - 1} * p.dstNzC0Stride + uint64_t{p.nValue - 1u} * p.dstNzNStride;
    auto* const out = to.bytes(core, (last + 1) * detail::kBlock, "DataCopy of rows to fractals");
    for (uint32_t i = 0; i < p.nValue; ++i) {
      const T* start = from.GetPhyAddr() + uint64_t{i} * p.srcDValue;
      const auto row = emulator::loaded(core, since, start, p.dValue * sizeof(T), "DataCopy of rows to fractals");
      for (uint32_t j = 0; j < num_c0; ++j) {
        uint8_t* block = out + (uint64_t{j} * p.dstNzC0Stride + uint64_t{i} * p.dstNzNStride) * detail::kBlock;
        const uint32_t width = std::min<uint32_t>(c0, p.dValue - c0 * j) * sizeof(T);
        std::copy_n(row.begin() + detail::kBlock * j, width, block);
        std::memset(block + width, 0, detail::kBlock - width);
      }
    }
    core.counts.gm_to_l1 += int64_t{p.nValue} * p.dValue * static_cast<int64_t>(sizeof(T));
    core.counts.to_l1.add(int64_t{p.nValue} * p.dValue * static_cast<int64_t>(sizeof(T)));
  });
}

}  // namespace AscendC

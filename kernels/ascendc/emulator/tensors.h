// GlobalTensor and LocalTensor: an address and the range that may be accessed.
#pragma once

#include "core.h"

#define __aicore__
#define __global__
#define __gm__
#define __ubuf__
#define GM_ADDR uint8_t*

namespace AscendC {

enum class TPosition : uint8_t { GM, A1, A2, B1, B2, C1, C2, CO1, CO2, VECIN, VECOUT, VECCALC, LCM = VECCALC };

namespace detail {

constexpr emulator::Memory memory_of(TPosition position) {
  switch (position) {
    case TPosition::A1:
    case TPosition::B1: return emulator::Memory::L1;
    case TPosition::A2: return emulator::Memory::L0A;
    case TPosition::B2: return emulator::Memory::L0B;
    case TPosition::CO1: return emulator::Memory::L0C;
    default: return emulator::Memory::UB;
  }
}

}  // namespace detail

template <class T>
class LocalTensor {
 public:
  using PrimType = T;
  LocalTensor() = default;
  LocalTensor(emulator::Allocation allocation, uint32_t offset) : allocation_(allocation), offset_(offset) {}

  LocalTensor operator[](uint32_t offset) const {
    return {allocation_, offset_ + offset * static_cast<uint32_t>(sizeof(T))};
  }
  template <class U>
  LocalTensor<U> ReinterpretCast() const {
    return {allocation_, offset_};
  }
  uint32_t GetSize() const { return (allocation_.end - offset_) / static_cast<uint32_t>(sizeof(T)); }

  // The scalar unit reads and writes UB.
  T GetValue(uint32_t index) const {
    T value;
    emulator::current().clock.word();
    emulator::current().finish_writes();
    std::memcpy(&value, scalar_address(index), sizeof(T));
    return value;
  }
  template <class S>
  void SetValue(uint32_t index, S value) const {
    const T stored = static_cast<T>(value);
    emulator::current().clock.word();
    emulator::current().write_later(scalar_address(index), &stored, sizeof(T));
  }

  const emulator::Allocation& allocation() const { return allocation_; }
  uint32_t offset() const { return offset_; }
  emulator::Memory memory() const { return allocation_.memory; }

  // Returns an operand's address for an instruction; checks alignment and that `num_bytes` bytes are inside the buffer.
  uint8_t* bytes(emulator::Core& core, uint64_t num_bytes, const char* what, uint32_t alignment = 0) const {
    const int m = static_cast<int>(allocation_.memory);
    const uint32_t aligned = alignment ? alignment : emulator::kMemoryAlignment[m];
    emulator::require(offset_ % aligned == 0, what, ": ", emulator::kMemoryNames[m], " address ", offset_,
                      " is not aligned to ", aligned, " bytes");
    emulator::require(offset_ >= allocation_.begin && offset_ + num_bytes <= allocation_.end, what, " touches ", num_bytes,
                      " bytes of ", emulator::kMemoryNames[m], " from ", offset_, " on, and its buffer is ",
                      allocation_.begin, " to ", allocation_.end);
    return core.local(allocation_.memory).at(offset_);
  }

 private:
  uint8_t* scalar_address(uint32_t index) const {
    emulator::Core& core = emulator::current();
    emulator::require(allocation_.memory == emulator::Memory::UB, "the scalar unit reads and writes UB only");
    return (*this)[index].bytes(core, sizeof(T), "GetValue or SetValue", sizeof(T));
  }

  emulator::Allocation allocation_;
  uint32_t offset_ = 0;
};

template <class T>
class GlobalTensor {
 public:
  using PrimType = T;
  void SetGlobalBuffer(__gm__ T* buffer) { address_ = buffer; }
  void SetGlobalBuffer(__gm__ T* buffer, uint64_t) { address_ = buffer; }
  __gm__ T* GetPhyAddr() const { return address_; }
  __gm__ T* GetPhyAddr(uint64_t offset) const { return address_ + offset; }
  GlobalTensor operator[](uint64_t offset) const {
    GlobalTensor out;
    out.address_ = address_ + offset;
    return out;
  }

  // Accesses go through the scalar unit's cache.
  T GetValue(uint64_t offset) const {
    emulator::Core& core = emulator::current();
    const int64_t fetched = core.cache.num_fetched();
    const T value = core.cache.load(address_ + offset, core.global.region_of(address_ + offset, sizeof(T), "GetValue"));
    core.note_load(address_ + offset, core.cache.num_fetched() > fetched);
    return value;
  }
  void SetValue(uint64_t offset, T value) {
    emulator::Core& core = emulator::current();
    core.cache.store(address_ + offset, value, core.global.region_of(address_ + offset, sizeof(T), "SetValue"));
  }

 private:
  __gm__ T* address_ = nullptr;
};

}  // namespace AscendC

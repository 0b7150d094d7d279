// Includes the Ascend C API and marks the headers shared with the host for the device.
#pragma once

#include "kernel_operator.h"
#include "device/gm2gm/engine/shmem_device_mte.h"

#ifndef HPMOE_DEVICE  // the emulator's API marks nothing, and HPMOE_DEVICE is then empty already
#define HPMOE_DEVICE __aicore__
#endif

#ifndef HPMOE_DECODES  // the emulator counts cycles of decoding `tasks` tasks until the end of the block
#define HPMOE_DECODES(tasks)
#endif

#include "chip.h"
#include "core/dtypes.h"
#include "core/numbers.h"
#include "launch_args.h"
#include "tables.h"

namespace hpmoe {

constexpr uint64_t kLineBytes = 64;  // of the scalar unit's cache

template <class T>
__aicore__ inline AscendC::GlobalTensor<T> global_at(uint64_t address) {
  AscendC::GlobalTensor<T> tensor;
  tensor.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(address));
  return tensor;
}

// Keeps the compiler from moving memory accesses across this point; the compiler does not know what pipes and caches
// write.
__aicore__ inline void keep_order() { asm volatile("" ::: "memory"); }

// Waits until all pipes of this core are empty.
__aicore__ inline void drain_pipes() {
  keep_order();
  AscendC::PipeBarrier<PIPE_ALL>();
  keep_order();
}

// Writes back and drops a line of the scalar unit's cache, or all lines.
template <AscendC::CacheLine lines>
__aicore__ inline void forget_lines(const AscendC::GlobalTensor<int32_t>& at) {
  keep_order();
  AscendC::DataCacheCleanAndInvalid<int32_t, lines, AscendC::DcciDst::CACHELINE_OUT>(at);
  keep_order();
}
__aicore__ inline void forget_line(const AscendC::GlobalTensor<int32_t>& at) {
  forget_lines<AscendC::CacheLine::SINGLE_CACHE_LINE>(at);
}
__aicore__ inline void forget_all_lines(uint64_t anywhere) {
  forget_lines<AscendC::CacheLine::ENTIRE_DATA_CACHE>(global_at<int32_t>(anywhere));
}

// The same address of the symmetric heap on another rank.
__aicore__ inline uint64_t address_on(uint64_t address, int32_t rank) {
  return reinterpret_cast<uint64_t>(aclshmem_ptr(reinterpret_cast<__gm__ void*>(address), rank));
}

// Reads a struct of words in global memory with the scalar unit: 8 bytes at a time if its size is a multiple of 8, and
// then its address must be, too.
template <class Row>
__aicore__ inline Row read_row(uint64_t address) {
  using Word = std::conditional_t<sizeof(Row) % sizeof(uint64_t) == 0, uint64_t, int32_t>;
  constexpr uint32_t num_words = sizeof(Row) / sizeof(Word);
  union {
    Word words[num_words];
    Row row;
  } both;
  const AscendC::GlobalTensor<Word> from = global_at<Word>(address);
  for (uint32_t i = 0; i < num_words; ++i) both.words[i] = from.GetValue(i);
  return both.row;
}

// Starts to load the line of an address into the scalar unit's cache; no core may write the line in this launch. At most
// four preloads may follow each other.
__aicore__ inline void preload(uint64_t address) {
  AscendC::DataCachePreload(global_at<uint64_t>(address / kLineBytes * kLineBytes), int64_t{0});
}

__aicore__ inline int32_t round_up(int32_t value, int32_t to) { return (value + to - 1) / to * to; }
__aicore__ inline bool is_float(int32_t dtype) { return is_float(static_cast<Dtype>(dtype)); }
__aicore__ inline int32_t element_bytes(int32_t dtype) {
  return static_cast<int32_t>(element_size(static_cast<Dtype>(dtype)));
}

}  // namespace hpmoe

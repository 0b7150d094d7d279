// The memories of a core, filled with NaN until they are written.
#pragma once

#include <cstdint>
#include <vector>

#include "chip.h"
#include "fault.h"

namespace emulator {

constexpr const char* kMemoryNames[kNumMemories] = {"UB", "L1", "L0A", "L0B", "L0C"};

// A buffer that TPipe has allocated; a write past its end is a fault even if the memory continues.
struct Allocation {
  Memory memory = Memory::UB;
  uint32_t begin = 0, end = 0;
};

class LocalMemory {
 public:
  explicit LocalMemory(Memory memory) : memory_(memory), bytes_(kMemoryBytes[static_cast<int>(memory)], 0xFF) {}

  Allocation allocate(uint32_t bytes) {
    const int i = static_cast<int>(memory_);
    const uint32_t alignment = kMemoryAlignment[i], begin = used_;
    used_ += (bytes + alignment - 1) / alignment * alignment;
    require(used_ <= bytes_.size(), kMemoryNames[i], " overflows: ", used_, " bytes asked for of ", bytes_.size());
    return {memory_, begin, begin + bytes};
  }
  void free_all() { used_ = 0; }

  uint8_t* at(uint32_t offset) { return bytes_.data() + offset; }

 private:
  Memory memory_;
  std::vector<uint8_t> bytes_;
  uint32_t used_ = 0;
};

}  // namespace emulator

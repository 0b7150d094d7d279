// Memory a worker keeps from one tile to the next, aligned to cache lines. What it held is lost when it grows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hpmoe {

// A block of memory. Threads come and go with launches, blocks stay: one that a thread leaves is the next one's.
class ScratchBlock {
 public:
  ScratchBlock() = default;
  ~ScratchBlock();
  ScratchBlock(const ScratchBlock&) = delete;

  // Throws std::bad_alloc.
  char* at_least(size_t bytes);

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

template <class Element>
class Scratch {
 public:
  Element* at_least(int64_t count) {
    return reinterpret_cast<Element*>(block_.at_least(static_cast<size_t>(count) * sizeof(Element)));
  }

 private:
  ScratchBlock block_;
};

}  // namespace hpmoe

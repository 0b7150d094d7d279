// Memory that a worker keeps from tile to tile, aligned to cache lines. Growing loses the contents.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hpmoe {

// A block of memory. A thread that ends returns its blocks to a pool for later threads.
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

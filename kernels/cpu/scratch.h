// Memory a worker keeps from one tile to the next, aligned to cache lines. What it held is lost when it grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hpmoe {

template <class Element>
class Scratch {
 public:
  Element* at_least(int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(Element) + kAlignment;
    if (memory_.size() < bytes) memory_ = std::vector<char>(bytes);
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return reinterpret_cast<Element*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }

 private:
  static constexpr size_t kAlignment = 64;
  std::vector<char> memory_;
};

}  // namespace hpmoe

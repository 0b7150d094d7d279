// The scalar unit's private cache: 64-byte lines, written back whole, coherent with nothing.
#pragma once

#include <cstdint>
#include <cstring>
#include <unordered_map>

#include "fault.h"

namespace twin {

class ScalarCache {
 public:
  static constexpr uintptr_t kLine = 64;

  template <class T>
  T load(const T* address) {
    T value;
    std::memcpy(&value, at(address), sizeof(T));
    return value;
  }
  template <class T>
  void store(T* address, T value) {
    std::memcpy(at(address), &value, sizeof(T));
    lines_[line_of(address)].is_dirty = true;
  }

  void clean_and_invalidate(const void* address) {
    const auto found = lines_.find(line_of(address));
    if (found == lines_.end()) return;
    write_back(*found);
    lines_.erase(found);
  }
  void clean_and_invalidate_all() {
    for (const auto& line : lines_) write_back(line);
    lines_.clear();
  }

  // What a kernel that ran before may have left: a line of old bytes.
  void leave_stale(const void* address) { std::memset(lines_[line_of(address)].bytes, 0xA5, kLine); }

  bool has_dirty_line() const {
    for (const auto& line : lines_)
      if (line.second.is_dirty) return true;
    return false;
  }

 private:
  struct Line {
    uint8_t bytes[kLine];
    bool is_dirty = false;
  };

  static uintptr_t line_of(const void* address) { return reinterpret_cast<uintptr_t>(address) / kLine * kLine; }

  uint8_t* at(const void* address) {
    const uintptr_t base = line_of(address), offset = reinterpret_cast<uintptr_t>(address) - base;
    const auto [found, is_new] = lines_.try_emplace(base);
    if (is_new) std::memcpy(found->second.bytes, reinterpret_cast<const void*>(base), kLine);
    return found->second.bytes + offset;
  }
  static void write_back(const std::pair<const uintptr_t, Line>& line) {
    if (line.second.is_dirty) std::memcpy(reinterpret_cast<void*>(line.first), line.second.bytes, kLine);
  }

  std::unordered_map<uintptr_t, Line> lines_;
};

}  // namespace twin

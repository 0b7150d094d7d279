// The scalar unit's private cache: 64-byte lines, written back whole, coherent with nothing. Arrays of the host need not
// begin at a line: of a line that several share, each comes in when it is first touched.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <unordered_map>

#include "global_memory.h"

namespace twin {

class ScalarCache {
 public:
  static constexpr uintptr_t kLine = 64;

  template <class T>
  T load(const T* address, const Region& region) {
    T value;
    std::memcpy(&value, at(address, region), sizeof(T));
    return value;
  }
  template <class T>
  void store(T* address, T value, const Region& region) {
    std::memcpy(at(address, region), &value, sizeof(T));
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
  void leave_stale(const void* address) {
    Line& line = lines_[line_of(address)];
    std::memset(line.bytes, 0xA5, kLine);
    line.known = ~uint64_t{0};
  }

  bool has_dirty_line() const {
    for (const auto& line : lines_)
      if (line.second.is_dirty) return true;
    return false;
  }

 private:
  struct Line {
    uint8_t bytes[kLine];
    uint64_t known = 0;  // a bit for each byte that has come in
    bool is_dirty = false;
  };

  static uintptr_t line_of(const void* address) { return reinterpret_cast<uintptr_t>(address) / kLine * kLine; }

  uint8_t* at(const void* address, const Region& region) {
    const uintptr_t base = line_of(address), offset = reinterpret_cast<uintptr_t>(address) - base;
    Line& line = lines_[base];
    if ((line.known >> offset & 1) != 0) return line.bytes + offset;
    const auto begin = reinterpret_cast<uintptr_t>(region.begin), end = begin + region.bytes;
    for (uintptr_t byte = std::max(begin, base); byte < std::min(end, base + kLine); ++byte) {
      if ((line.known >> (byte - base) & 1) == 0) line.bytes[byte - base] = *reinterpret_cast<const uint8_t*>(byte);
      line.known |= uint64_t{1} << (byte - base);
    }
    return line.bytes + offset;
  }
  static void write_back(const std::pair<const uintptr_t, Line>& line) {
    for (uintptr_t i = 0; line.second.is_dirty && i < kLine; ++i)
      if ((line.second.known >> i & 1) != 0) reinterpret_cast<uint8_t*>(line.first)[i] = line.second.bytes[i];
  }

  std::unordered_map<uintptr_t, Line> lines_;
};

}  // namespace twin

// The scalar unit's private cache: 64-byte lines, written back whole, without coherence. Arrays of the host need not
// begin at a line; if arrays share a line, each part is loaded at its first access.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <unordered_map>

#include "global_memory.h"

namespace emulator {

class ScalarCache {
 public:
  static constexpr uintptr_t kLine = 64, kWord = 4;

  static uintptr_t line_of(const void* address) { return reinterpret_cast<uintptr_t>(address) / kLine * kLine; }

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

  // Leaves a line of old bytes, as an earlier kernel may do.
  void leave_stale(const void* address) {
    Line& line = lines_[line_of(address)];
    std::memset(line.bytes, 0xA5, kLine);
    line.known = ~uint64_t{0};
  }

  // Number of fetched lines, or parts of lines.
  int64_t num_fetched() const { return num_fetched_; }

  bool has_dirty_line() const {
    for (const auto& line : lines_)
      if (line.second.is_dirty) return true;
    return false;
  }

 private:
  struct Line {
    uint8_t bytes[kLine];
    uint64_t known = 0;  // one bit for each loaded byte
    bool is_dirty = false;
  };

  uint8_t* at(const void* address, const Region& region) {
    const uintptr_t base = line_of(address), offset = reinterpret_cast<uintptr_t>(address) - base;
    Line& line = lines_[base];
    if ((line.known >> offset & 1) != 0) return line.bytes + offset;
    ++num_fetched_;
    const auto begin = reinterpret_cast<uintptr_t>(region.begin), end = begin + region.bytes;
    const uintptr_t last = std::min(end, base + kLine);
    for (uintptr_t byte = std::max(begin, base); byte < last;) {
      const bool is_word = byte % kWord == 0 && byte + kWord <= last && (line.known >> (byte - base) & 0xF) == 0;
      is_word ? read<uint32_t>(line, byte) : read<uint8_t>(line, byte);
      byte += is_word ? kWord : 1;
    }
    return line.bytes + offset;
  }
  // Loads unknown bytes. Other processes may add to a word, so it is read as a whole, after their earlier stores.
  template <class T>
  static void read(Line& line, uintptr_t address) {
    const uintptr_t offset = address % kLine;
    if ((line.known >> offset & 1) != 0) return;
    const T value = __atomic_load_n(reinterpret_cast<const T*>(address), __ATOMIC_ACQUIRE);
    std::memcpy(line.bytes + offset, &value, sizeof(T));
    line.known |= ((uint64_t{1} << sizeof(T)) - 1) << offset;
  }
  static void write_back(const std::pair<const uintptr_t, Line>& line) {
    for (uintptr_t i = 0; line.second.is_dirty && i < kLine; ++i)
      if ((line.second.known >> i & 1) != 0) reinterpret_cast<uint8_t*>(line.first)[i] = line.second.bytes[i];
  }

  std::unordered_map<uintptr_t, Line> lines_;
  int64_t num_fetched_ = 0;
};

}  // namespace emulator

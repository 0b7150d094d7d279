// An estimate of the time that a core takes, by what it asks for one after the other: the scalar unit hands over an
// instruction and waits for it, and a copy goes on beside that until somebody waits for it. In cycles of 1.815 GHz.
//
// That is how the prologue works; bodies, whose pipes work side by side, take less.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "counts.h"

namespace emulator {

// Times of signals are those of hpmoe.machines.ascend_a3.sync. A small copy takes 0.7 us: others measured 0.73 us for 4 KB
// from another die. Assumed: a word of UB, a line that the scalar unit's cache fetches from L2, and an instruction of the
// vector unit before its first and after its last step of 256 bytes.
constexpr double kCyclesPerUs = 1815;
constexpr double kWordCycles = 9, kCopyCycles = 1270, kSignalCycles = 545, kPollCycles = 1815, kRemoteCycles = 1815;
constexpr double kLineCycles = 360, kVectorCycles = 20, kCopyBytesPerCycle = 60;

class Clock {
 public:
  Effort effort{};
  Decoding* decoding = nullptr;  // while a task is decoded

  double now() const { return now_; }

  void word() {
    pass(kWordCycles);
    ++effort.scalar_words;
    if (decoding) ++decoding->words;
  }
  void line() {
    pass(kLineCycles);
    ++effort.cached_lines;
    if (decoding) ++decoding->lines;
  }
  // A line that is fetched while the core goes on, and one that the core needs now.
  void preload(uintptr_t line) { due_[line] = now_ + kLineCycles; }
  void need(uintptr_t line) {
    const auto found = due_.find(line);
    if (found == due_.end()) return;
    wait_until(found->second);
    due_.erase(found);
  }
  // The scalar unit is but a few instructions ahead of the cube.
  void cube(double cycles) { pass(cycles); }
  void vector(int64_t bytes) {
    const int64_t steps = (bytes + 255) / 256;
    pass(kVectorCycles + static_cast<double>(steps));
    ++effort.vector_instructions;
    effort.vector_steps += steps;
  }
  void copy(int64_t bytes) {
    copied_ = std::max(copied_, now_ + kCopyCycles) + static_cast<double>(bytes) / kCopyBytesPerCycle;
    ++effort.copies;
  }
  // When all copies so far have ended; until those that end then have.
  double end_of_copies() const { return copied_; }
  void wait_for_copies(double end) {
    if (end > now_) ++effort.waits_for_copies;
    wait_until(end);
  }
  void wait_until(double when) {
    now_ = std::max(now_, when);
    effort.cycles = static_cast<int64_t>(now_);
  }

 private:
  void pass(double cycles) { wait_until(now_ + cycles); }

  double now_ = 0, copied_ = 0;
  std::unordered_map<uintptr_t, double> due_;  // lines by their addresses
};

// When what was added to each counter last has arrived there.
using Arrivals = std::unordered_map<const void*, double>;

}  // namespace emulator

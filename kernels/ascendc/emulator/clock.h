// Estimates the time of a core from its sequence of requests, in cycles of 1.815 GHz. The scalar unit issues an
// instruction and waits for it; a copy runs in parallel until something waits for it. The prologue works like this; tile
// bodies overlap more and take less time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "counts.h"

namespace emulator {

// Times of signals are those of hpmoe.machines.ascend_a3.sync. A small copy takes 0.7 us; a published measurement is 0.73
// us for 4 KB from another die. Assumed: a word of UB, a cache line that the scalar unit fetches from L2, and the start
// and end of a vector instruction beyond its steps of 256 bytes.
constexpr double kCyclesPerUs = 1815;
constexpr double kWordCycles = 9, kCopyCycles = 1270, kSignalCycles = 545, kPollCycles = 1815, kRemoteCycles = 1815;
constexpr double kLineCycles = 360, kVectorCycles = 20, kCopyBytesPerCycle = 60;

class Clock {
 public:
  Effort effort{};
  Decoding* decoding = nullptr;  // set while a task is decoded

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
  // A preloaded line arrives while the core continues; load() waits for a line.
  void preload(uintptr_t line) { due_[line] = now_ + kLineCycles; }
  void need(uintptr_t line) {
    const auto found = due_.find(line);
    if (found == due_.end()) return;
    wait_until(found->second);
    due_.erase(found);
  }
  // The scalar unit is only a few instructions ahead of the cube.
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
  // The time when all copies so far have ended; wait_for_copies() waits until a given time.
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
  std::unordered_map<uintptr_t, double> due_;  // by address of the line
};

// The time at which the last addition to each counter arrives.
using Arrivals = std::unordered_map<const void*, double>;

}  // namespace emulator

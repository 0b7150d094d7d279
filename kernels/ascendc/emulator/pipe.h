// One pipe of a core: instructions wait here until the scheduler runs them. Work may end in any order, but for what comes
// behind a flag that is awaited or a barrier; that is how a missing one shows. A flag is set when all work before it has
// ended, and holds nothing up.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "fault.h"

namespace emulator {

// A binary flag between two pipes.
struct Flag {
  int value = 0;
  size_t set_at = 0;  // of one that the scalar unit sets, how many stores there had been anywhere
  double due = 0;     // of one of copies that the scalar unit waits for, when these have ended by the core's clock
};

struct Instruction {
  enum Kind { WORK, SET, WAIT, BARRIER } kind;
  const char* name;
  std::function<void()> work;
  Flag* flag = nullptr;
  bool in_order = false;  // work that the hardware itself keeps in order
};

class Pipe {
 public:
  static constexpr size_t kDepth = 32;

  bool is_full() const { return queue_.size() >= kDepth; }
  bool is_empty() const { return queue_.empty(); }
  void push(Instruction instruction) { queue_.push_back(std::move(instruction)); }

  // The instructions that may run now, by place.
  const std::vector<size_t>& ready() {
    ready_.clear();
    bool work_is_under_way = false;
    for (size_t i = 0; i < queue_.size(); ++i) {
      const Instruction& next = queue_[i];
      const bool needs_all_before = next.kind == Instruction::SET || next.kind == Instruction::BARRIER || next.in_order;
      const bool is_held = (needs_all_before && work_is_under_way) ||
                           (next.kind == Instruction::WAIT && next.flag->value == 0);
      if (!is_held) ready_.push_back(i);
      if (next.kind == Instruction::WAIT || next.kind == Instruction::BARRIER) break;
      work_is_under_way |= next.kind == Instruction::WORK;
    }
    return ready_;
  }

  void run(size_t index) {
    const Instruction instruction = std::move(queue_[index]);
    queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(index));
    switch (instruction.kind) {
      case Instruction::WORK: instruction.work(); break;
      case Instruction::SET:
        require(instruction.flag->value == 0, "flag ", instruction.name, " is set again before anything waited for it");
        instruction.flag->value = 1;
        break;
      case Instruction::WAIT: instruction.flag->value = 0; break;
      case Instruction::BARRIER: break;
    }
  }

  std::string front_name() const { return queue_.empty() ? "" : queue_.front().name; }

 private:
  std::deque<Instruction> queue_;
  std::vector<size_t> ready_;
};

}  // namespace emulator

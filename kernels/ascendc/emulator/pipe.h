// A pipe of a core: a queue of instructions that the scheduler runs. Instructions may end in any order, unless a flag or
// a barrier orders them; a missing flag thus shows up. Setting a flag waits for all earlier instructions but delays no
// later one.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "fault.h"

namespace emulator {

// A binary flag between two pipes.
struct Flag {
  int value = 0;
  size_t set_at = 0;  // of a flag from the scalar unit: the number of stores before
  double due = 0;  // of a flag from copies to the scalar unit: when they end by the clock
};

struct Instruction {
  enum Kind { WORK, SET, WAIT, BARRIER } kind;
  const char* name;
  std::function<void()> work;
  Flag* flag = nullptr;
  bool in_order = false;  // instructions that the hardware itself orders
};

class Pipe {
 public:
  static constexpr size_t kDepth = 32;

  bool is_full() const { return queue_.size() >= kDepth; }
  bool is_empty() const { return queue_.empty(); }
  void push(Instruction instruction) { queue_.push_back(std::move(instruction)); }

  // Returns the instructions that may run now, by position.
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

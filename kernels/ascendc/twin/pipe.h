// One pipe of a core: instructions wait here until the scheduler runs them. Between two points of order (a flag set or
// awaited, a barrier) they may end in any order, which is how a missing point of order shows.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "fault.h"

namespace twin {

// A binary flag between two pipes.
struct Flag {
  int value = 0;
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

  // How many instructions from the front may run now.
  size_t num_ready() const {
    if (queue_.empty()) return 0;
    const Instruction& front = queue_.front();
    if (front.kind == Instruction::WAIT) return front.flag->value > 0;
    if (front.kind != Instruction::WORK || front.in_order) return 1;
    size_t n = 0;
    while (n < queue_.size() && queue_[n].kind == Instruction::WORK && !queue_[n].in_order) ++n;
    return n;
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
};

}  // namespace twin

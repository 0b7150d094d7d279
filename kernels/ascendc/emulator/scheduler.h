// Which core goes on next, and which instruction of its pipes: a random legal order, the same for the same seed.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "core.h"
#include "core/abi.h"

namespace emulator {

// Why a rank gets no further whose peers other processes serve.
struct Lost {
  hpmoe::Code code;
};

class Scheduler {
 public:
  // peers: those who serve the ranks of other processes, or NULL.
  Scheduler(std::vector<std::unique_ptr<Core>>& cores, uint64_t seed, const HpmoePeers* peers);

  // Runs until every program has ended; what breaks a rule of the hardware, or waits forever, is a Fault. Lost where peers
  // say so.
  void run();

 private:
  // A core's program or one of its pipes. Weights change now and then: something is fast for a while, something starved.
  struct Choice {
    int entity;
    uint32_t weight;
  };

  bool step(Core& core, size_t first_entity);
  void run_entity(Core& core, int entity);
  void draw_weights();
  void draw_laggards();
  void forget_looks();
  void idle();
  bool is_in_vain(bool is_idle);
  bool all_only_look() const;
  [[noreturn]] void report_deadlock() const;

  static constexpr int kEntities = 1 + Core::kNumPipes;

  std::vector<std::unique_ptr<Core>>& cores_;
  const HpmoePeers* const peers_;
  std::mt19937_64 random_;
  std::vector<uint32_t> weights_;
  std::vector<bool> is_laggard_;  // cores that hardly get on, for as long as a launch may take
  std::vector<Choice> choices_;
  int64_t quiet_cycles_ = 0;  // that the clock was put forward last, since something else than looks has happened
  bool is_late_ = false;     // no rank has got on for too long, which the kernel is to find out
  bool has_looked_ = false;  // this step was a core's look at memory, not its first since anything happened
};

// Cycles of the system counter: it jumps when all that happens is that cores look at memory that does not change.
int64_t now();

}  // namespace emulator

// Chooses the next core, and the next instruction of its pipes: a random legal order that depends only on the seed.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "core.h"
#include "core/abi.h"

namespace emulator {

// Thrown if a rank whose peers other processes serve cannot continue; says why.
struct Lost {
  hpmoe::Code code;
};

class Scheduler {
 public:
  // peers: serve the ranks of other processes, or NULL.
  Scheduler(std::vector<std::unique_ptr<Core>>& cores, uint64_t seed, const HpmoePeers* peers);

  // Runs until every program has ended. Throws a Fault for a broken rule of the hardware or a wait without end, and Lost
  // if peers report a failure.
  void run();

 private:
  // A core's program or one of its pipes. Weights change over time, so that each is sometimes fast and sometimes starved.
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
  std::vector<bool> is_laggard_;  // cores that hardly advance
  std::vector<Choice> choices_;
  int64_t quiet_cycles_ = 0;  // by which the clock has advanced since anything but polls has happened
  bool is_late_ = false;  // no rank has advanced for too long, which the kernel must detect
  bool has_looked_ = false;  // this step was a poll, not the core's first since anything happened
};

// Cycles of the system counter, which jumps if cores only poll memory that does not change.
int64_t now();

}  // namespace emulator

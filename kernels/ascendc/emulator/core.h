// A core: its program, pipes, flags and memories; and current(), the core that runs.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "clock.h"
#include "fiber.h"
#include "global_memory.h"
#include "local_memory.h"
#include "pipe.h"
#include "scalar_cache.h"
#include "scalar_types.h"

namespace emulator {

enum class Atomic { NONE, ADD_INT32, ADD_FLOAT };

class Core {
 public:
  static constexpr int kNumPipes = PIPE_ALL;

  Core(int rank, bool is_aic, int block, int sub_block, GlobalMemory& memory, Counts& counts)
      : rank(rank),
        is_aic(is_aic),
        block(block),
        sub_block(sub_block),
        global(memory),
        counts(counts),
        local_{LocalMemory(Memory::UB), LocalMemory(Memory::L1), LocalMemory(Memory::L0A), LocalMemory(Memory::L0B),
               LocalMemory(Memory::L0C)} {}

  const int rank;
  const bool is_aic;
  const int block, sub_block;
  GlobalMemory& global;
  Counts& counts;
  ScalarCache cache;
  Clock clock;
  size_t loads_since = 0;  // loads issued from now on see at least the stores before this one of other cores
  int num_looks = 0;  // polls since anything else has happened on any core
  Atomic atomic = Atomic::NONE;  // for instructions issued from now on
  bool rounds_float32 = true;  // before products; an earlier kernel may have left it on
  bool saturates = true;  // rounding to half precision, the hardware's default

  LocalMemory& local(Memory memory) { return local_[static_cast<int>(memory)]; }
  // L0A_MX or L0B_MX of a 950: scales of the contents of L0A or L0B, at 16 times their address.
  std::vector<uint8_t>& scales(Memory memory) { return scales_[memory == Memory::L0B]; }
  Pipe& pipe(pipe_t p) { return pipes_[p]; }

  std::string name() const {
    return text("rank ", rank, is_aic ? " aic." : " aiv.", is_aic ? block : 2 * block + sub_block);
  }

  void need(bool wanted_aic, const char* what) const {
    require(is_aic == wanted_aic, what, " is called on an ", is_aic ? "AIC" : "AIV");
  }

  // Issues an instruction of the scalar unit to a pipe; waits while the pipe is full.
  void issue(pipe_t p, Instruction instruction) {
    Pipe& target = pipes_[p];
    wait_until([&target] { return !target.is_full(); }, "room in a pipe");
    target.push(std::move(instruction));
    pause();
  }
  void work(pipe_t p, const char* what, std::function<void()> body, bool in_order = false) {
    issue(p, {Instruction::WORK, what, std::move(body), nullptr, in_order});
  }

  // A scalar write to UB is delayed: it completes at the latest when the core sets a flag, waits for all pipes, or reads.
  void write_later(uint8_t* to, const void* from, size_t bytes) {
    const auto* begin = static_cast<const uint8_t*>(from);
    written_.push_back({to, std::vector<uint8_t>(begin, begin + bytes)});
  }
  void finish_writes() {
    for (const auto& [to, bytes] : written_) std::copy(bytes.begin(), bytes.end(), to);
    written_.clear();
  }

  void set_flag(pipe_t from, Flag& flag, const char* what) {
    if (from != PIPE_S) return issue(from, {Instruction::SET, what, {}, &flag});
    finish_writes();
    require(flag.value == 0, "flag ", what, " is set again before anything waited for it");
    flag.value = 1;
    flag.set_at = global.journal.now();
  }
  void wait_flag(pipe_t to, Flag& flag, const char* what) {
    if (to != PIPE_S) return issue(to, {Instruction::WAIT, what, {}, &flag});
    wait_until([&flag] { return flag.value > 0; }, what);
    flag.value = 0;
  }

  // Estimated time of loads and signals. Repeated polls of one counter are counted once.
  void look_next() { is_looking_ = true; }
  void note_load(const void* address, bool is_fetched) {
    const auto arrival = global.arrivals.find(address);
    const bool has_arrived = arrival != global.arrivals.end(),
               is_wait = is_looking_ && (!has_arrived || looked_at_ == address);
    is_looking_ = false;
    num_preloads_ = 0;
    if (!is_fetched) clock.need(ScalarCache::line_of(address));
    if (is_fetched && !is_wait) clock.line();
    if (!is_wait) clock.word();
    if (!has_arrived) return;
    looked_at_ = address;
    clock.wait_until(arrival->second + kPollCycles);
  }
  // A preload; only a few may follow each other, or the scalar unit stalls.
  void note_preload(const void* address) {
    require(++num_preloads_ <= kMostPreloads, "DataCachePreload: more than ", kMostPreloads, " follow each other");
    clock.preload(ScalarCache::line_of(address));
  }
  void note_copy(int64_t bytes) { clock.copy(bytes); }
  // Notes counters that a copy polls.
  void note_look(const void* address) {
    const auto arrival = global.arrivals.find(address);
    if (arrival != global.arrivals.end()) clock.wait_until(arrival->second + kPollCycles);
  }
  void note_signal(const void* counter, bool is_remote) {
    clock.wait_until(clock.now() + kSignalCycles);
    double& arrival = global.arrivals[counter];
    arrival = std::max(arrival, clock.now() + (is_remote ? kRemoteCycles : 0.0));
  }

  bool pipes_are_empty() const {
    for (const Pipe& p : pipes_)
      if (!p.is_empty()) return false;
    return true;
  }

  // Blocks the program until ready() holds; the scheduler calls ready().
  void wait_until(std::function<bool()> ready, const char* what) {
    if (ready()) return;
    ready_ = std::move(ready);
    waits_for_ = what;
    fiber_->yield();
    ready_ = nullptr;
    waits_for_ = "";
  }
  // Lets other cores run.
  void pause() { fiber_->yield(); }
  // Lets other cores run, in a loop that polls memory.
  void poll() {
    is_polling_ = true;
    fiber_->yield();
    is_polling_ = false;
  }

  void start(std::function<void()> program) { fiber_ = std::make_unique<Fiber>(std::move(program)); }
  bool can_resume() const { return !fiber_->has_ended() && (!ready_ || ready_()); }
  bool has_ended() const { return fiber_->has_ended(); }
  bool is_polling() const { return is_polling_; }
  void resume() { fiber_->resume(); }

  // User flags by event and number; how many of an event TPipe has allocated; and their check at the end.
  Flag& flag(int event, int id) { return flags_[{event, id}]; }
  int& taken_flags(int event) { return taken_flags_[event]; }
  void check_end() const;
  std::string describe_wait() const;

 private:
  LocalMemory local_[kNumMemories];
  std::vector<uint8_t> scales_[2] = {std::vector<uint8_t>(4096, 0xFF), std::vector<uint8_t>(4096, 0xFF)};
  Pipe pipes_[kNumPipes];
  std::map<std::pair<int, int>, Flag> flags_;
  std::map<int, int> taken_flags_;
  std::vector<std::pair<uint8_t*, std::vector<uint8_t>>> written_;
  std::unique_ptr<Fiber> fiber_;
  std::function<bool()> ready_;
  const char* waits_for_ = "";
  bool is_polling_ = false, is_looking_ = false;
  const void* looked_at_ = nullptr;
  static constexpr int kMostPreloads = 4;
  int num_preloads_ = 0;  // since the last load
};

// The core whose program is running.
Core& current();
void set_current(Core* core);

// Returns what a load of MTE2 finds in global memory, inside the known arrays. A load may be earlier than the scalar
// unit's preceding polls, but not earlier than the last wait of MTE2 for the scalar unit, or barrier of all pipes, after
// `since` stores. This function picks the earliest time.
inline std::vector<uint8_t> loaded(Core& core, size_t since, const void* address, uint64_t bytes, const char* what) {
  core.global.region_of(address, bytes, what);
  return core.global.journal.read(&core, since, static_cast<const uint8_t*>(address), bytes);
}
inline uint8_t* writable(Core& core, void* address, uint64_t bytes, const char* what) {
  core.global.region_of(address, bytes, what);
  return static_cast<uint8_t*>(address);
}

// Stores bytes, or adds them as numbers if an atomic mode is on.
void store(Core& core, Atomic atomic, uint8_t* to, const uint8_t* from, uint64_t bytes, const char* what);

}  // namespace emulator

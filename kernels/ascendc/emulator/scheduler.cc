#include "scheduler.h"

#include <algorithm>

#include "sync.h"

namespace emulator {
namespace {

int64_t clock_cycles = 0;

constexpr int64_t kIdleJump = 20'000'000 * kSystemCyclesPerUs;
constexpr int64_t kFirstJump = 64, kMostQuiet = 20'000 * kSystemCyclesPerUs;
constexpr int kStepsBetweenLooks = 256;  // at peers
constexpr int kPollsOfAWait = 4;  // polls after which a core has checked its counter in every part of its loop

}  // namespace

int64_t now() { return clock_cycles; }

Scheduler::Scheduler(std::vector<std::unique_ptr<Core>>& cores, uint64_t seed, const HpmoePeers* peers)
    : cores_(cores), peers_(peers), random_(seed), weights_(cores.size() * kEntities), is_laggard_(cores.size()) {
  clock_cycles = 0;
  draw_weights();
  draw_laggards();
}

void Scheduler::draw_weights() {
  constexpr uint32_t kSpeeds[] = {1, 6, 36};
  for (uint32_t& weight : weights_) weight = kSpeeds[random_() % 3];
}

void Scheduler::draw_laggards() {
  for (size_t i = 0; i < is_laggard_.size(); ++i) is_laggard_[i] = random_() % 4 == 0;
}

void Scheduler::run() {
  size_t num_left = cores_.size();
  std::vector<size_t> order(cores_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  while (num_left > 0) {
    if (random_() % 256 == 0) draw_weights();
    if (random_() % 8192 == 0) draw_laggards();
    const size_t start = random_() % order.size();
    has_looked_ = false;
    bool has_run = false, has_lagged = false;
    for (size_t i = 0; i < order.size() && !has_run; ++i) {
      const size_t c = order[(start + i) % order.size()];
      Core& core = *cores_[c];
      if (is_laggard_[c] && random_() % 64 != 0) {
        has_lagged = true;
        continue;
      }
      const bool was_running = !core.has_ended();
      has_run = step(core, c * kEntities);
      if (was_running && core.has_ended()) {
        core.check_end();
        if (!core.is_aic && core.clock.effort.cycles > core.counts.busiest.cycles) core.counts.busiest = core.clock.effort;
        --num_left;
      }
    }
    if (!has_run && has_lagged) continue;
    if (!has_run) report_deadlock();
    ++clock_cycles;
    if (clock_cycles % kStepsBetweenLooks == 0) (void)is_in_vain(false);
    if (has_looked_ && all_only_look()) idle();
  }
}

// Called if only time or other processes can make progress. A put that is held back continues after a while.
void Scheduler::idle() {
  if (quiet_cycles_ < kMostQuiet) {
    quiet_cycles_ = std::max(2 * quiet_cycles_, kFirstJump);
    clock_cycles += quiet_cycles_;
    for (const auto& core : cores_) core->num_looks = 0;
    return;
  }
  is_late_ = is_late_ || is_in_vain(true);
  if (is_late_) clock_cycles += kIdleJump;
  forget_looks();
}

// Returns true if no rank can advance any more: all ranks are here and wait.
bool Scheduler::is_in_vain(bool is_idle) {
  if (!peers_) return true;
  const auto code = static_cast<hpmoe::Code>(peers_->look(peers_->launch, is_idle));
  if (code != hpmoe::Code::OK && code != hpmoe::Code::TIMEOUT) throw Lost{code};
  return code == hpmoe::Code::TIMEOUT;
}

bool Scheduler::step(Core& core, size_t first_entity) {
  choices_.clear();
  uint64_t total = 0;
  for (int entity = 0; entity < kEntities; ++entity) {
    const bool can_run = entity == 0 ? core.can_resume() : !core.pipe(static_cast<pipe_t>(entity - 1)).ready().empty();
    if (!can_run) continue;
    choices_.push_back({entity, weights_[first_entity + static_cast<size_t>(entity)]});
    total += choices_.back().weight;
  }
  if (choices_.empty()) return false;
  uint64_t pick = random_() % total;
  for (const Choice& choice : choices_) {
    if (pick < choice.weight) {
      run_entity(core, choice.entity);
      return true;
    }
    pick -= choice.weight;
  }
  return true;
}

void Scheduler::run_entity(Core& core, int entity) {
  if (entity == 0) {
    if (core.is_polling()) {
      has_looked_ = ++core.num_looks >= kPollsOfAWait;
    } else {
      forget_looks();
    }
    set_current(&core);
    try {
      core.resume();
    } catch (const Fault& fault) {
      throw Fault(text(core.name(), ": ", fault.what()));
    }
    return;
  }
  forget_looks();
  Pipe& pipe = core.pipe(static_cast<pipe_t>(entity - 1));
  try {
    const std::vector<size_t>& ready = pipe.ready();
    pipe.run(ready[random_() % ready.size()]);
  } catch (const Fault& fault) {
    throw Fault(text(core.name(), ": ", fault.what()));
  }
}

void Scheduler::forget_looks() {
  quiet_cycles_ = 0;
  for (const auto& core : cores_) core->num_looks = 0;
}

// Returns true if every core has polled since anything else has happened on any core.
bool Scheduler::all_only_look() const {
  for (const auto& core : cores_) {
    if (!core->has_ended() && core->is_polling() && core->num_looks < kPollsOfAWait) return false;
    if (!core->has_ended() && !core->is_polling() && core->can_resume()) return false;
    for (int p = 0; p < Core::kNumPipes; ++p)
      if (!core->pipe(static_cast<pipe_t>(p)).ready().empty()) return false;
  }
  return true;
}

void Scheduler::report_deadlock() const {
  std::string what = "every core waits:";
  for (const auto& core : cores_) what += "\n  " + core->describe_wait();
  throw Fault(what);
}

}  // namespace emulator

namespace AscendC {

int64_t GetSystemCycle() {
  emulator::current().poll();
  return emulator::now();
}

}  // namespace AscendC

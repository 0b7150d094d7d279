#include "core.h"

#include <cstring>

namespace emulator {
namespace {

Core* running = nullptr;

constexpr const char* kPipeNames[] = {"S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX"};

void add_floats(uint8_t* to, const uint8_t* from, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i += sizeof(float)) {
    float a, b;
    std::memcpy(&a, to + i, sizeof a);
    std::memcpy(&b, from + i, sizeof b);
    a += b;
    std::memcpy(to + i, &a, sizeof a);
  }
}

// Other processes may add to the same words; whoever sees a sum sees all earlier stores.
void add_words(uint8_t* to, const uint8_t* from, uint64_t bytes) {
  require(reinterpret_cast<uintptr_t>(to) % sizeof(int32_t) == 0, "an addition to words that are not aligned");
  for (uint64_t i = 0; i < bytes; i += sizeof(int32_t)) {
    int32_t amount;
    std::memcpy(&amount, from + i, sizeof amount);
    __atomic_fetch_add(reinterpret_cast<int32_t*>(to + i), amount, __ATOMIC_SEQ_CST);
  }
}

}  // namespace

Core& current() { return *running; }
void set_current(Core* core) { running = core; }

void store(Core& core, Atomic atomic, uint8_t* to, const uint8_t* from, uint64_t bytes, const char* what) {
  const Region& region = core.global.region_of(to, bytes, what);
  core.global.journal.note(&core, to, bytes);
  switch (atomic) {
    case Atomic::NONE: std::memcpy(to, from, bytes); break;
    case Atomic::ADD_INT32: add_words(to, from, bytes); break;
    case Atomic::ADD_FLOAT: add_floats(to, from, bytes); break;
  }
  if (atomic == Atomic::ADD_INT32 && region.rank != core.rank) core.global.wake(region.rank);
}

void Core::check_end() const {
  for (const auto& [key, flag] : flags_) {
    require(flag.value == 0, name(), " ended with flag ", key.second, " of event ", key.first, " set and not awaited");
  }
  require(!cache.has_dirty_line(), name(), " ended with a dirty line in its scalar cache");
  require(atomic == Atomic::NONE, name(), " ended with an atomic mode on");
}

std::string Core::describe_wait() const {
  std::string out = name() + (has_ended() ? ": ended" : is_polling_ ? ": polls memory" : text(": waits for ", waits_for_));
  for (int p = 0; p < kNumPipes; ++p) {
    if (!pipes_[p].is_empty()) out += text("; pipe ", kPipeNames[p], " stands at ", pipes_[p].front_name());
  }
  return out;
}

}  // namespace emulator

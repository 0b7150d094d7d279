#include "core.h"

#include <cstring>

namespace twin {
namespace {

Core* running = nullptr;

constexpr const char* kPipeNames[] = {"S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX"};

template <class T>
void add(uint8_t* to, const uint8_t* from, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i += sizeof(T)) {
    T a, b;
    std::memcpy(&a, to + i, sizeof(T));
    std::memcpy(&b, from + i, sizeof(T));
    a += b;
    std::memcpy(to + i, &a, sizeof(T));
  }
}

}  // namespace

Core& current() { return *running; }
void set_current(Core* core) { running = core; }

void store(Core& core, Atomic atomic, uint8_t* to, const uint8_t* from, uint64_t bytes, const char* what) {
  uint8_t* const target = writable(core, to, bytes, what);
  core.global.journal.note(&core, target, bytes);
  switch (atomic) {
    case Atomic::NONE: std::memcpy(target, from, bytes); break;
    case Atomic::ADD_INT32: add<int32_t>(target, from, bytes); break;
    case Atomic::ADD_FLOAT: add<float>(target, from, bytes); break;
  }
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

}  // namespace twin

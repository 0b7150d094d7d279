// Flags between pipes, barriers, the data cache, system registers.
#pragma once

#include "tensors.h"

namespace emulator {

// Counts `tasks` decoded tasks, and the scalar unit's cycles of this scope as decoding.
class DecodingScope {
 public:
  explicit DecodingScope(int tasks) : clock_(current().clock), before_(clock_.decoding) {
    Core& core = current();
    begin_ = clock_.now();
    clock_.decoding = core.is_aic ? &core.counts.aic : &core.counts.aiv;
    clock_.decoding->tasks += tasks;
  }
  ~DecodingScope() {
    if (!before_) clock_.decoding->cycles += static_cast<int64_t>(clock_.now() - begin_);
    clock_.decoding = before_;
  }
  DecodingScope(const DecodingScope&) = delete;
  DecodingScope& operator=(const DecodingScope&) = delete;

 private:
  Clock& clock_;
  Decoding* const before_;
  double begin_ = 0;
};

}  // namespace emulator

#define HPMOE_DECODES(tasks) const ::emulator::DecodingScope decoding(tasks)

namespace AscendC {

using TEventID = int8_t;

// clang-format off: a list, several members a line
#define HPMOE_EMULATOR_EVENTS(X)                                                                                          \
  X(MTE2, MTE1) X(MTE1, MTE2) X(MTE1, M) X(M, MTE1) X(MTE2, V) X(V, MTE2) X(MTE3, V) X(V, MTE3) X(M, FIX) X(FIX, M)     \
  X(MTE3, MTE2) X(MTE2, MTE3) X(S, V) X(V, S) X(S, MTE2) X(MTE2, S) X(S, MTE3) X(MTE3, S) X(FIX, MTE3) \
  X(FIX, S)
// clang-format on

enum class HardEvent : uint8_t {
#define HPMOE_EMULATOR_EVENT(from, to) from##_##to,
  HPMOE_EMULATOR_EVENTS(HPMOE_EMULATOR_EVENT)
#undef HPMOE_EMULATOR_EVENT
      MAX
};

namespace detail {

struct Event {
  pipe_t from, to;
  const char* name;
};

inline constexpr Event kEvents[] = {
#define HPMOE_EMULATOR_EVENT(from, to) {PIPE_##from, PIPE_##to, #from "_" #to},
    HPMOE_EMULATOR_EVENTS(HPMOE_EMULATOR_EVENT)
#undef HPMOE_EMULATOR_EVENT
};

constexpr int kNumFlags = 8;

// Returns a flag that is not allocated, without allocating it; for APIs that need one only inside a call.
inline int free_flag(int event, const char* who) {
  const int taken = emulator::current().taken_flags(event);
  emulator::require(taken < kNumFlags, who, ": event ", kEvents[event].name, " has no number left");
  return taken;
}
inline int take_flag(int event, const char* who) {
  const int id = free_flag(event, who);
  ++emulator::current().taken_flags(event);
  return id;
}
inline int event_between(pipe_t from, pipe_t to) {
  int event = 0;
  while (kEvents[event].from != from || kEvents[event].to != to) ++event;
  return event;
}

inline void check_flag(const Event& event, int id) {
  emulator::require(id >= 0 && id < kNumFlags, "flag ", event.name, " has the number ", id, " and there are ", kNumFlags);
  const bool of_aic = event.from == PIPE_M || event.to == PIPE_M || event.from == PIPE_FIX || event.to == PIPE_FIX ||
                      event.from == PIPE_MTE1 || event.to == PIPE_MTE1;
  const bool of_aiv = event.from == PIPE_V || event.to == PIPE_V;
  if (of_aic || of_aiv) emulator::current().need(of_aic, event.name);
  const bool of_mte3 = event.from == PIPE_MTE3 || event.to == PIPE_MTE3;
  emulator::require(!emulator::kIs950 || !of_mte3 || !emulator::current().is_aic, "flag ", event.name,
                    ": an AIC of a 950 has no MTE3");
}

}  // namespace detail

template <HardEvent event>
void SetFlag(int32_t id) {
  constexpr detail::Event e = detail::kEvents[static_cast<int>(event)];
  detail::check_flag(e, id);
  emulator::Core& core = emulator::current();
  emulator::Flag& flag = core.flag(static_cast<int>(event), id);
  if (event == HardEvent::MTE2_S) flag.due = core.clock.end_of_copies();
  core.set_flag(e.from, flag, e.name);
}

template <HardEvent event>
void WaitFlag(int32_t id) {
  constexpr detail::Event e = detail::kEvents[static_cast<int>(event)];
  detail::check_flag(e, id);
  emulator::Core& core = emulator::current();
  emulator::Flag& flag = core.flag(static_cast<int>(event), id);
  if (event == HardEvent::S_MTE2) core.loads_since = flag.set_at;
  core.wait_flag(e.to, flag, e.name);
  if (event == HardEvent::MTE2_S) core.clock.wait_for_copies(flag.due);
}

template <pipe_t pipe>
void PipeBarrier() {
  emulator::Core& core = emulator::current();
  if constexpr (pipe == PIPE_ALL) {
    core.finish_writes();
    core.wait_until([&core] { return core.pipes_are_empty(); }, "PipeBarrier<PIPE_ALL>");
    core.loads_since = core.global.journal.now();
    core.clock.wait_for_copies(core.clock.end_of_copies());
  } else {
    static_assert(pipe != PIPE_S, "the scalar unit is in order");
    core.issue(pipe, {emulator::Instruction::BARRIER, "PipeBarrier", {}, nullptr});
  }
}

enum class CacheLine : uint64_t { SINGLE_CACHE_LINE = 0, ENTIRE_DATA_CACHE };
enum class DcciDst : uint64_t { CACHELINE_ALL = 0, CACHELINE_UB, CACHELINE_OUT, CACHELINE_ATOMIC };

template <class T, CacheLine lines, DcciDst destination>
void DataCacheCleanAndInvalid(const GlobalTensor<T>& tensor) {
  static_assert(destination == DcciDst::CACHELINE_OUT, "counters are cleaned out to global memory");
  emulator::Core& core = emulator::current();
  if (lines == CacheLine::ENTIRE_DATA_CACHE) {
    core.cache.clean_and_invalidate_all();
  } else {
    core.cache.clean_and_invalidate(tensor.GetPhyAddr());
    core.look_next();
  }
  core.poll();
}

// Preloads a line into the scalar unit's cache.
template <class T>
void DataCachePreload(const GlobalTensor<uint64_t>& tensor, const T offset) {
  static_assert(std::is_same_v<T, int16_t> || std::is_same_v<T, int64_t>, "offsets in bytes");
  emulator::Core& core = emulator::current();
  const auto* const at = reinterpret_cast<const uint8_t*>(tensor.GetPhyAddr()) + offset;
  const int64_t fetched = core.cache.num_fetched();
  core.cache.load(at, core.global.region_of(at, 1, "DataCachePreload"));
  if (core.cache.num_fetched() > fetched) core.note_preload(at);
}

// Preloads code into the instruction cache (32 KB on an AIC, 16 KB on an AIV), in blocks of 2 KB.
inline void ICachePreLoad(int64_t blocks) {
  const int64_t most = emulator::current().is_aic ? 16 : 8;
  emulator::require(blocks > 0 && blocks < most, "ICachePreLoad: ", blocks, " blocks, and there must be fewer than ", most);
}

// Makes later DMA writes add the stored number to memory.
template <class T>
void SetAtomicAdd() {
  static_assert(std::is_same_v<T, int32_t> || std::is_same_v<T, float>, "additions the kernel uses");
  emulator::current().atomic = std::is_same_v<T, int32_t> ? emulator::Atomic::ADD_INT32 : emulator::Atomic::ADD_FLOAT;
}
// On a 950: adds to a number of global memory with the scalar unit, past its cache, and returns the old value.
template <class T>
T AtomicAdd(__gm__ T* address, T value) {
  static_assert(std::is_same_v<T, int32_t>, "additions the kernel uses");
  emulator::require(emulator::kIs950, "AtomicAdd is of the 950");
  emulator::Core& core = emulator::current();
  T before;
  std::memcpy(&before, emulator::writable(core, address, sizeof(T), "AtomicAdd"), sizeof(T));
  emulator::store(core, emulator::Atomic::ADD_INT32, reinterpret_cast<uint8_t*>(address), reinterpret_cast<uint8_t*>(&value),
                  sizeof(T), "AtomicAdd");
  core.pause();
  return before;
}
inline void SetAtomicNone() { emulator::current().atomic = emulator::Atomic::NONE; }

// Sets saturation: overflow in rounding to half precision then becomes the largest number.
enum class SaturationMode : uint8_t { FLOAT, FLOAT8, INT, CAST };
template <SaturationMode mode>
void SetSaturationFlag(bool saturates) {
  static_assert(mode == SaturationMode::FLOAT, "the flag the kernel sets");
  emulator::current().saturates = saturates;
}

// Loops that poll memory call this or invalidate a line; both let other cores run.
int64_t GetSystemCycle();
// On an AIV, its number among all AIV.
inline int64_t GetBlockIdx() {
  const emulator::Core& core = emulator::current();
  return core.is_aic ? core.block : 2 * core.block + core.sub_block;
}

}  // namespace AscendC

using AscendC::TEventID;
#define ASCEND_IS_AIC (::emulator::current().is_aic)
#define ASCEND_IS_AIV (!::emulator::current().is_aic)

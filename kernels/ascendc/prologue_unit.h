// Shared parts of the prologue: copies of routing-table words to and from UB, this core's share of the tokens, and
// barriers of a rank's AIV.
#pragma once

#include "core/expert_copies.h"
#include "core/row_capacity.h"
#include "counters.h"
#include "vector_unit.h"

namespace hpmoe {

using Words = AscendC::LocalTensor<int32_t>;

// Returns true if a route keeps the entries with the largest weights.
__aicore__ inline bool keeps_heaviest(const RouteWords& route) {
  return static_cast<DropPolicy>(route.drop_policy) == DropPolicy::PROBS;
}

// Counts in UB as a function object.
struct CountsOf {
  const Words& words;

  __aicore__ inline int32_t operator()(int32_t i) const { return words.GetValue(i); }
};

class PrologueUnit {
 public:
  static constexpr int32_t kWords = kNumFloats * kPieceFloats;  // of UB, for the prologue

  const RankView& rank;
  const Counters& counters;
  VectorUnit& unit;
  const int32_t core;
  Status& status;

  __aicore__ inline PrologueUnit(const RankView& rank, const Counters& counters, VectorUnit& unit, int32_t core,
                                 Status& status)
      : rank(rank), counters(counters), unit(unit), core(core), status(status) {}

  __aicore__ inline Words words(int32_t first) { return unit.words()[first]; }
  __aicore__ inline uint64_t word(int32_t index) const { return rank.args.tables + static_cast<uint64_t>(index) * 4; }
  __aicore__ inline void read(const Words& to, uint64_t from, int32_t count) {
    unit.copy_in(to.ReinterpretCast<uint8_t>(), from, 1, count * 4, 0, 0);
  }
  __aicore__ inline void write(uint64_t to, const Words& from, int32_t count) {
    unit.copy_out(to, from.ReinterpretCast<uint8_t>(), 1, count * 4, 0, 0);
  }
  __aicore__ inline static void clear(const Words& words, int32_t count) {
    for (int32_t i = 0; i < count; ++i) words.SetValue(i, 0);
  }
  // Call after the scalar unit has written words to UB and before they are copied out.
  __aicore__ inline void publish() {
    drain_pipes();
    unit.release_to_copies();
  }

  __aicore__ inline uint64_t buffer(int32_t i) const { return global_at<uint64_t>(rank.args.buffers).GetValue(i); }
  // Returns the entries of this rank that an expert of a route takes; the host stores them after the addresses of the
  // buffers.
  __aicore__ inline int32_t capacity(int32_t route) const {
    return static_cast<int32_t>(buffer(rank.image.header().num_buffers + route));
  }

  // Returns this core's range of the entries of a route: whole tokens.
  __aicore__ inline void share(const RouteWords& route, int32_t* first, int32_t* last) const {
    const int32_t all = rank.args.num_tokens, part = (all + rank.num_aiv - 1) / rank.num_aiv;
    *first = least(core * part, all) * route.top_k;
    *last = least((core + 1) * part, all) * route.top_k;
  }

  // Sets `all` to the sums of a table [V][width] over all cores, and `before` to those over the cores before this one.
  // Reads as many rows at once as `room` words of `work` hold.
  __aicore__ inline void sum_shares(int32_t table, int32_t width, const Words& all, const Words& before, const Words& work,
                                    int32_t capacity) {
    const int32_t at_once = most(capacity / width, 1);
    drain_pipes();
    AscendC::Duplicate(all, 0, width);
    AscendC::Duplicate(before, 0, width);
    for (int32_t first = 0; first < rank.num_aiv; first += at_once) {
      const int32_t rows = least(at_once, rank.num_aiv - first);
      read(work, word(table + first * width), rows * width);
      drain_pipes();
      for (int32_t u = 0; u < rows; ++u) {
        AscendC::Add(all, all, work[u * width], width);
        if (first + u < core) AscendC::Add(before, before, work[u * width], width);
        AscendC::PipeBarrier<PIPE_V>();
      }
      drain_pipes();
    }
  }

  // Appends each value of `size` words to its key's list in a table; `next` has the ends of the lists, and a key of -1 is
  // skipped. Each key's staged values begin at a 32-byte block of UB, as copies require.
  __aicore__ inline void append(const Words& keys, const Words& values, int32_t size, int32_t count, int32_t num_keys,
                                const Words& next, int32_t table, const Words& ends, const Words& staged) {
    drain_pipes();
    clear(ends, num_keys);
    for (int32_t i = 0; i < count; ++i) {
      const int32_t key = keys.GetValue(i);
      if (key >= 0) ends.SetValue(key, ends.GetValue(key) + size);
    }
    int32_t begin = 0;
    for (int32_t key = 0; key < num_keys; ++key) {
      const int32_t words = ends.GetValue(key);
      ends.SetValue(key, begin);
      begin += round_up(words, kBlockBytes / 4);
    }
    for (int32_t i = 0; i < count; ++i) {
      const int32_t key = keys.GetValue(i);
      if (key < 0) continue;
      const int32_t at = ends.GetValue(key);
      for (int32_t w = 0; w < size; ++w) staged.SetValue(at + w, values.GetValue(i * size + w));
      ends.SetValue(key, at + size);
    }
    publish();
    for (int32_t key = 0, from = 0; key < num_keys; ++key) {
      const int32_t words = ends.GetValue(key) - from, first = next.GetValue(key);
      if (words > 0) write(word(table + first * size), staged[from], words);
      next.SetValue(key, first + words / size);
      from += round_up(words, kBlockBytes / 4);
    }
  }
  // Words of UB that `append` needs besides a chunk's own words: each key may leave a block partly filled.
  __aicore__ inline static int32_t slack(int32_t num_keys) { return num_keys * (kBlockBytes / 4 - 1); }

  __aicore__ inline void signal(int32_t counter) {
    drain_pipes();
    unit.add_to_counter(counters.address(counters.prologue(counter)), 1);
  }
  __aicore__ inline Code wait(int32_t counter, int32_t target) {
    return code_of(counters.wait(counters.prologue(counter), target));
  }
  __aicore__ inline Code meet(int32_t counter, int32_t target) {
    signal(counter);
    return wait(counter, target);
  }
};

// Allocates words of UB for a part of the prologue.
class UbWords {
 public:
  __aicore__ inline explicit UbWords(PrologueUnit& on) : on_(on) {}
  __aicore__ inline Words take(int32_t count) {
    const int32_t first = next_;
    next_ += count;
    return on_.words(first);
  }
  // Returns how many entries each of `parts` lists can hold in the remaining words besides `slack` words: entries of
  // whole tokens.
  __aicore__ inline int32_t capacity(int32_t parts, int32_t slack) const {
    return (PrologueUnit::kWords - next_ - slack) / (parts * kLane) * kLane;
  }

 private:
  PrologueUnit& on_;
  int32_t next_ = 0;
};

}  // namespace hpmoe

// Counts the kept entries of tiles of tokens with vector instructions, from the table that marks dropped entries. The
// next entries are loaded meanwhile.
#pragma once

#include "prologue_unit.h"

namespace hpmoe {

class KeptEntries {
 public:
  static constexpr int32_t kAtOnce = 1024, kAhead = VectorUnit::kNumMarks,
                           kWords = (kAhead + 1) * kAtOnce + kAtOnce / 32;  // of UB

  __aicore__ inline KeptEntries(PrologueUnit& on, UbWords& ub) : on_(on) {
    for (Words& chosen : chosen_) chosen = ub.take(kAtOnce);
    dropped_ = ub.take(kAtOnce);
    mask_ = ub.take(kAtOnce / 32);
  }

  // Prepares the tiles `first` to `last` - 1 of a route; a tile has as many tokens as the route returns at once.
  __aicore__ inline void init(int32_t number, int32_t first, int32_t last) {
    const RouteWords route = on_.rank.image.route(number);
    of_tile_ = route.return_tokens * route.top_k;
    parts_of_tile_ = (of_tile_ + kAtOnce - 1) / kAtOnce;
    num_entries_ = on_.rank.args.num_tokens * route.top_k;
    table_ = on_.rank.image.tables(number, on_.rank.num_aiv).chosen;
    part_ = first * parts_of_tile_;
    end_ = last * parts_of_tile_;
    drain_pipes();
    for (int32_t i = 0; i < kAhead; ++i) read(part_ + i);
  }
  // Returns the count of the next tile.
  __aicore__ inline int32_t next() {
    int32_t kept = 0;
    for (int32_t i = 0; i < parts_of_tile_; ++i, ++part_) {
      const int32_t count = size(part_);
      if (count == 0) continue;
      on_.unit.wait_for_load(part_ % kAhead);
      kept += count - find_dropped(chosen_[part_ % kAhead], count);
      read(part_ + kAhead);
    }
    return kept;
  }

 private:
  __aicore__ inline int32_t begin(int32_t part) const {
    return part / parts_of_tile_ * of_tile_ + part % parts_of_tile_ * kAtOnce;
  }
  __aicore__ inline int32_t size(int32_t part) const {
    const int32_t of_tile = least(of_tile_ - part % parts_of_tile_ * kAtOnce, kAtOnce);
    return part < end_ ? most(least(of_tile, num_entries_ - begin(part)), 0) : 0;
  }
  __aicore__ inline void read(int32_t part) {
    if (size(part) == 0) return;
    on_.read(chosen_[part % kAhead], on_.word(table_ + begin(part)), size(part));
    on_.unit.mark_load(part % kAhead);
  }
  __aicore__ inline int32_t find_dropped(const Words& chosen, int32_t count) {
    uint64_t found = 0;
    AscendC::PipeBarrier<PIPE_V>();
    in_order::Compares(mask_.ReinterpretCast<uint8_t>(), chosen, -1, AscendC::CMPMODE::EQ,
                       static_cast<uint32_t>(round_up(count, kFloatsAtOnce)));
    AscendC::GatherMask(dropped_, chosen, mask_.ReinterpretCast<uint32_t>(), true, static_cast<uint32_t>(count),
                        {1, 1, 8, 0}, found);
    on_.unit.wait_for_results();
    return static_cast<int32_t>(found);
  }

  PrologueUnit& on_;
  int32_t of_tile_ = 0, parts_of_tile_ = 1, num_entries_ = 0, table_ = 0, part_ = 0, end_ = 0;
  Words chosen_[kAhead], dropped_, mask_;
};

}  // namespace hpmoe

// What the AIV cores do before any task: sort the rank's entries by expert, tell the other ranks, place the rows, and
// set the targets of all events. See tables.h for the letters.
//
// The tokens are shared out, a part to each core. Ranks meet once, when each has told all others where its entries begin.
// The tables of even and odd launches lie apart: a rank that is ahead may fill those of the next launch.
#pragma once

#include "counters.h"
#include "vector_unit.h"

namespace hpmoe {

class Prologue {
 public:
  __aicore__ inline Prologue(const RankView& rank, const Counters& counters, VectorUnit& unit, int32_t core, Status& status)
      : rank_(rank), counters_(counters), unit_(unit), core_(core), status_(status) {}

  // OK, or why not: status has the numbers.
  __aicore__ inline Code run() {
    const int32_t num_routes = rank_.image.header().num_routes, epoch = rank_.args.epoch, all = epoch * rank_.num_aiv;
    Code code = Code::OK;
    for (int32_t r = 0; r < num_routes && code == Code::OK; ++r) code = count_share(r);
    if (code == Code::OK) code = meet(kCounted, all);
    for (int32_t r = 0; r < num_routes && code == Code::OK; ++r) sort_share(r);
    if (code == Code::OK) code = meet(kSorted, all);
    if (code != Code::OK) return code;
    tell_others(num_routes);
    if (core_ == 0) {
      code = wait(kExchanged, epoch * rank_.image.header().ep_size);
      for (int32_t r = 0; r < num_routes && code == Code::OK; ++r) code = place_rows(r);
      if (code != Code::OK) return code;
      signal(kPlaced);
    }
    code = wait(kPlaced, epoch);
    if (code != Code::OK) return code;
    set_targets();
    return meet(kReady, all);
  }

 private:
  static constexpr int32_t kChunk = 2048;  // entries sorted at once

  // UB as words: three arrays over experts, the ids of a chunk, the chunk sorted.
  struct Scratch {
    AscendC::LocalTensor<int32_t> a, b, c, ids, sorted;
  };
  __aicore__ inline Scratch scratch(const RouteTables& tables) {
    const AscendC::LocalTensor<int32_t> words = unit_.words();
    return {words, words[tables.width], words[2 * tables.width], words[3 * tables.width],
            words[3 * tables.width + kChunk]};
  }

  __aicore__ inline uint64_t word(int32_t index) const { return rank_.args.tables + static_cast<uint64_t>(index) * 4; }
  __aicore__ inline static Bytes bytes(const AscendC::LocalTensor<int32_t>& words) {
    return words.ReinterpretCast<uint8_t>();
  }
  __aicore__ inline void read(const AscendC::LocalTensor<int32_t>& to, uint64_t from, int32_t words) {
    unit_.copy_in(bytes(to), from, 1, words * 4, 0, 0);
  }
  __aicore__ inline void write(uint64_t to, const AscendC::LocalTensor<int32_t>& from, int32_t words) {
    unit_.copy_out(to, bytes(from), 1, words * 4, 0, 0);
  }

  // Before words that the scalar unit has written leave UB; a flag may be set again only once it was awaited.
  __aicore__ inline void publish() {
    AscendC::PipeBarrier<PIPE_ALL>();
    unit_.release_to_copies();
  }

  __aicore__ inline void signal(PrologueCounter counter) {
    AscendC::PipeBarrier<PIPE_ALL>();
    unit_.add_to_counter(counters_.address(counters_.prologue(counter)), 1);
  }
  __aicore__ inline Code wait(PrologueCounter counter, int32_t target) {
    switch (counters_.wait(counters_.prologue(counter), target)) {
      case WaitEnd::MET: return Code::OK;
      case WaitEnd::TIMEOUT: return Code::TIMEOUT;
      default: return Code::ABORTED_PEER;
    }
  }
  __aicore__ inline Code meet(PrologueCounter counter, int32_t target) {
    signal(counter);
    return wait(counter, target);
  }

  // This core's part of the entries of a route.
  __aicore__ inline void share(const RouteWords& route, int32_t* first, int32_t* last) const {
    const int32_t all = rank_.args.num_tokens * route.top_k, part = (all + rank_.num_aiv - 1) / rank_.num_aiv;
    *first = least(core_ * part, all);
    *last = least(*first + part, all);
  }
  __aicore__ inline void read_ids(const RouteWords& route, const Scratch& s, int32_t first, int32_t count) {
    const uint64_t ids = global_at<uint64_t>(rank_.args.buffers).GetValue(route.ids_buffer);
    read(s.ids, ids + static_cast<uint64_t>(first) * 4, count);
    unit_.wait_for_loads();
  }
  __aicore__ inline static void clear(const AscendC::LocalTensor<int32_t>& words, int32_t count) {
    for (int32_t i = 0; i < count; ++i) words.SetValue(i, 0);
  }

  __aicore__ inline Code count_share(int32_t r) {
    const RouteWords route = rank_.image.route(r);
    const RouteTables tables = rank_.image.tables(r, rank_.num_aiv);
    const Scratch s = scratch(tables);
    int32_t first, last;
    share(route, &first, &last);
    AscendC::PipeBarrier<PIPE_ALL>();
    clear(s.a, tables.width);
    for (int32_t begin = first; begin < last; begin += kChunk) {
      const int32_t count = least(kChunk, last - begin);
      read_ids(route, s, begin, count);
      for (int32_t i = 0; i < count; ++i) {
        const int32_t id = s.ids.GetValue(i);
        if (id < 0 || id >= route.num_experts) {
          status_.value = id;
          status_.threshold = route.num_experts;
          return Code::INDEX_OUT_OF_RANGE;
        }
        s.a.SetValue(id, s.a.GetValue(id) + 1);
      }
    }
    publish();
    write(word(tables.shares + core_ * tables.width), s.a, tables.width);
    return Code::OK;
  }

  // a: where each expert's entries begin; b: where this core's of them do.
  __aicore__ inline void find_starts(const RouteWords& route, const RouteTables& tables, const Scratch& s) {
    AscendC::PipeBarrier<PIPE_ALL>();
    AscendC::Duplicate(s.a, 0, tables.width);
    AscendC::Duplicate(s.b, 0, tables.width);
    for (int32_t u = 0; u < rank_.num_aiv; ++u) {
      read(s.c, word(tables.shares + u * tables.width), tables.width);
      AscendC::PipeBarrier<PIPE_ALL>();
      AscendC::Add(s.a, s.a, s.c, tables.width);
      if (u < core_) AscendC::Add(s.b, s.b, s.c, tables.width);
      AscendC::PipeBarrier<PIPE_ALL>();
    }
    int32_t start = 0;
    for (int32_t e = 0; e < tables.width; ++e) {
      const int32_t count = e < route.num_experts ? s.a.GetValue(e) : 0;
      s.a.SetValue(e, start);
      s.b.SetValue(e, start + s.b.GetValue(e));
      start += count;
    }
  }

  __aicore__ inline void sort_share(int32_t r) {
    const RouteWords route = rank_.image.route(r);
    const RouteTables tables = rank_.image.tables(r, rank_.num_aiv);
    const Scratch s = scratch(tables);
    find_starts(route, tables, s);
    if (core_ == 0) {
      publish();
      write(word(tables.sent + rank_.args.rank * tables.width), s.a, tables.width);
    }
    int32_t first, last;
    share(route, &first, &last);
    for (int32_t begin = first; begin < last; begin += kChunk) {
      AscendC::PipeBarrier<PIPE_ALL>();
      sort_chunk(route, tables, s, begin, least(kChunk, last - begin));
    }
  }

  // Copies of a block begin at 32 bytes of UB, so each expert's part of the sorted chunk does.
  __aicore__ inline void sort_chunk(const RouteWords& route, const RouteTables& tables, const Scratch& s, int32_t begin,
                                    int32_t count) {
    read_ids(route, s, begin, count);
    clear(s.c, tables.width);
    for (int32_t i = 0; i < count; ++i) s.c.SetValue(s.ids.GetValue(i), s.c.GetValue(s.ids.GetValue(i)) + 1);
    int32_t place = 0;
    for (int32_t e = 0; e < route.num_experts; ++e) {
      const int32_t rows = s.c.GetValue(e);
      s.c.SetValue(e, place);
      place += round_up(rows, kBlockBytes / 4);
    }
    for (int32_t i = 0; i < count; ++i) {
      const int32_t id = s.ids.GetValue(i), at = s.c.GetValue(id);
      s.sorted.SetValue(at, begin + i);
      s.c.SetValue(id, at + 1);
    }
    publish();
    for (int32_t e = 0, from = 0; e < route.num_experts; ++e) {
      const int32_t rows = s.c.GetValue(e) - from;
      if (rows > 0) write(word(tables.entries + s.b.GetValue(e)), s.sorted[from], rows);
      s.b.SetValue(e, s.b.GetValue(e) + rows);
      from += round_up(rows, kBlockBytes / 4);
    }
  }

  // Where this rank's entries begin, to every other rank; the ranks are shared out among the cores.
  __aicore__ inline void tell_others(int32_t num_routes) {
    const AscendC::LocalTensor<int32_t> row = unit_.words();
    for (int32_t rank = core_; rank < rank_.image.header().ep_size; rank += rank_.num_aiv) {
      for (int32_t r = 0; r < num_routes; ++r) {
        const RouteTables tables = rank_.image.tables(r, rank_.num_aiv);
        const uint64_t mine = word(tables.sent + rank_.args.rank * tables.width);
        AscendC::PipeBarrier<PIPE_ALL>();
        read(row, mine, tables.width);
        AscendC::PipeBarrier<PIPE_ALL>();
        if (rank != rank_.args.rank) write(address_on(mine, rank), row, tables.width);
      }
      AscendC::PipeBarrier<PIPE_ALL>();
      unit_.add_to_counter(address_on(counters_.address(counters_.prologue(kExchanged)), rank), 1);
    }
  }

  // a: entries of all ranks before each expert; b: the same of the ranks before s.
  __aicore__ inline Code place_rows(int32_t r) {
    const RouteWords route = rank_.image.route(r);
    const RouteTables tables = rank_.image.tables(r, rank_.num_aiv);
    const Scratch s = scratch(tables);
    const int32_t me = rank_.args.rank, ep_size = rank_.image.header().ep_size, mine = me * route.num_local_experts;
    AscendC::PipeBarrier<PIPE_ALL>();
    AscendC::Duplicate(s.a, 0, tables.width);
    for (int32_t source = 0; source < ep_size; ++source) {
      AscendC::PipeBarrier<PIPE_ALL>();
      write_differences(tables.before + source * tables.narrow, s.a, mine, s.sorted, route.num_local_experts);
      AscendC::PipeBarrier<PIPE_ALL>();
      write_differences(tables.own_start + source * tables.narrow, s.a, source * route.num_local_experts, s.sorted,
                        route.num_local_experts);
      if (source == me) write_differences(tables.ahead, s.a, 0, s.b, route.num_experts);
      read(s.c, word(tables.sent + source * tables.width), tables.width);
      AscendC::PipeBarrier<PIPE_ALL>();
      AscendC::Add(s.a, s.a, s.c, tables.width);
    }
    AscendC::PipeBarrier<PIPE_ALL>();
    for (int32_t dest = 0; dest < ep_size; ++dest) {
      const Code code = place_rows_of(dest, route, tables, s);
      if (code != Code::OK) return code;
    }
    return Code::OK;
  }
  // to[e] = sums[first + e + 1] - sums[first + e]
  __aicore__ inline void write_differences(int32_t to, const AscendC::LocalTensor<int32_t>& sums, int32_t first,
                                           const AscendC::LocalTensor<int32_t>& work, int32_t count) {
    for (int32_t e = 0; e < count; ++e) work.SetValue(e, sums.GetValue(first + e + 1) - sums.GetValue(first + e));
    publish();
    write(word(to), work, count);
  }
  __aicore__ inline Code place_rows_of(int32_t dest, const RouteWords& route, const RouteTables& tables, const Scratch& s) {
    const int32_t tile_rows = rank_.image.header().tile_rows, experts = route.num_local_experts;
    int32_t row = 0, slot = 0;
    AscendC::PipeBarrier<PIPE_ALL>();
    for (int32_t e = 0; e <= experts; ++e) {
      s.b.SetValue(e, row);
      s.c.SetValue(e, slot);
      if (e == experts) break;
      const int32_t rows = s.a.GetValue(dest * experts + e + 1) - s.a.GetValue(dest * experts + e);
      row += rows;
      slot += (rows + tile_rows - 1) / tile_rows;
    }
    publish();
    write(word(tables.expert_start + dest * tables.narrow), s.b, experts + 1);
    write(word(tables.slot_start + dest * tables.narrow), s.c, experts + 1);
    const int32_t holds = route.max_rows > 0 ? route.max_rows : route.num_slots * tile_rows;
    const bool too_many_slots = slot > route.num_slots;
    if (dest != rank_.args.rank || (!too_many_slots && row <= holds)) return Code::OK;
    status_.value = too_many_slots ? slot : row;
    status_.threshold = too_many_slots ? route.num_slots : holds;
    return Code::SLOT_OVERFLOW;
  }

  // Each event's target grows by its threshold; the events are shared out among the cores, by lines of 64 bytes.
  __aicore__ inline void set_targets() {
    const int32_t num_events = rank_.image.header().num_events;
    const int32_t part = in_lines((num_events + rank_.num_aiv - 1) / rank_.num_aiv);
    const int32_t last = least((core_ + 1) * part, num_events);
    const AscendC::LocalTensor<int32_t> targets = unit_.words();
    for (int32_t begin = core_ * part; begin < last; begin += kChunk) {
      const int32_t count = least(kChunk, last - begin);
      const uint64_t address = rank_.args.targets + static_cast<uint64_t>(begin) * 4;
      AscendC::PipeBarrier<PIPE_ALL>();
      read(targets, address, count);
      unit_.wait_for_loads();
      for (int32_t i = 0, run = 0; i < count; ++i) {
        while (rank_.image.end_of_run(run) <= begin + i) ++run;
        targets.SetValue(i, targets.GetValue(i) + threshold(rank_.image.event_run(run), begin + i));
      }
      publish();
      write(address, targets, count);
    }
  }

  __aicore__ inline int32_t threshold(const EventRun& run, int32_t event) {
    const int32_t index = run.index + event - run.first;
    if (run.route < 0) return run.mult * extent(run, index, nullptr);
    if (run.route != last_route_) {
      routing_.init(rank_.image, run.route, rank_.num_aiv, rank_.args.tables, rank_.args.rank);
      last_route_ = run.route;
    }
    return run.mult * extent(run, index, &routing_);
  }

  __aicore__ inline int32_t extent(const EventRun& run, int32_t index, const RoutingTables* routing) const {
    const int32_t me = rank_.args.rank, num_tokens = rank_.args.num_tokens, tile_rows = rank_.image.header().tile_rows;
    const int32_t tile = cut(num_tokens, static_cast<int64_t>(index) * tile_rows, tile_rows).rows;
    switch (static_cast<Extent>(run.extent)) {
      case Extent::ONE:
      case Extent::STATIC_TILE: return 1;
      case Extent::TILE: return tile;
      case Extent::TOKENS: return num_tokens;
      default: break;
    }
    const int32_t experts = routing->route().num_local_experts, top_k = routing->route().top_k;
    const int32_t expert = index % experts;
    switch (static_cast<Extent>(run.extent)) {
      case Extent::SLOT: return routing->slot(me, index).rows;
      case Extent::EXPERT: return routing->expert_rows(me, index);
      case Extent::RECEIVED: return routing->received(me);
      case Extent::ENTRIES: return num_tokens * top_k;
      case Extent::TILE_ENTRIES: return tile * top_k;
      case Extent::SENT_TO: return routing->sent_to(me, rank_.image.peer(me, index));
      case Extent::RETURNED_TO: return routing->sent_to(rank_.image.peer(me, index), me);
      case Extent::SENT_TO_EXPERT:
        return routing->sent_to_experts(me, rank_.image.peer(me, index / experts), expert, expert + 1);
      default: return routing->sent_to_experts(rank_.image.peer(me, index / experts), me, expert, expert + 1);
    }
  }

  const RankView& rank_;
  const Counters& counters_;
  VectorUnit& unit_;
  const int32_t core_;
  Status& status_;
  RoutingTables routing_;
  int32_t last_route_ = -1;
};

}  // namespace hpmoe

// Computes the target of each event's counter in this launch: the previous target plus the event's threshold. Events are
// divided among the cores by lines of 64 bytes.
//
// Vector instructions add thresholds that are equal over a whole run, or over a run except the last slot of each expert.
#pragma once

#include "kept_entries.h"
#include "placement.h"

namespace hpmoe {

// Answers questions about a route from a core's UB, and from tables that other cores do not write.
class PlacedRoute : public RouteCounts<PlacedRoute, int32_t>, public ExpertCopies<PlacedRoute> {
 public:
  __aicore__ inline PlacedRoute(PrologueUnit& on, UbWords& ub) : on_(on), placement_(on, ub) {}

  __aicore__ inline void init(int32_t number) {
    routing_.init(on_.rank.image, number, on_.rank.num_aiv, on_.rank.args);
    placement_.find(number, on_.rank.me(), false);
  }

  __aicore__ inline Unit slot(int32_t, int32_t index) const {
    const int32_t e = expert_of_slot(0, index);
    if (e == placement_.num_experts()) return {placement_.received(), 0, e - 1};
    return expert_slots(0, e).unit(index, placement_.start(e + 1));
  }
  __aicore__ inline int32_t expert_start(int32_t, int32_t expert) const { return placement_.start(expert); }
  __aicore__ inline int32_t own_start(int32_t, int32_t expert) const { return placement_.own_start(expert); }
  __aicore__ inline int32_t first_slot(int32_t, int32_t expert) const { return placement_.first_slot(expert); }
  __aicore__ inline int32_t expert_padding(int32_t, int32_t expert) const { return placement_.padding(expert); }
  __aicore__ inline int32_t sent_start(int32_t source, int32_t expert) const { return routing_.sent_start(source, expert); }
  // For tokens that keep all entries; KeptEntries counts the entries of other tokens.
  __aicore__ inline int32_t kept_entries(int32_t, int32_t, int32_t num_tokens) const {
    return num_tokens * routing_.route().top_k;
  }
  __aicore__ inline bool keeps_all() const { return routing_.keeps_all(); }
  __aicore__ inline int32_t relayed(int32_t relay) const { return routing_.relayed(relay); }
  __aicore__ inline int32_t num_local_experts() const { return placement_.num_experts(); }
  __aicore__ inline int32_t ep_size() const { return routing_.ep_size(); }
  __aicore__ inline int32_t alignment() const { return routing_.alignment(); }
  __aicore__ inline int32_t tile_rows() const { return routing_.tile_rows(); }
  __aicore__ inline int32_t return_tokens() const { return routing_.return_tokens(); }
  __aicore__ inline int32_t num_own_experts() const { return routing_.num_own_experts(); }
  __aicore__ inline Share share(int32_t rank, int32_t expert) const { return routing_.share(rank, expert); }

 private:
  PrologueUnit& on_;
  Placement placement_;
  RoutingTables routing_;
};

class Targets {
 public:
  __aicore__ inline explicit Targets(PrologueUnit& on) : on_(on), ub_(on), route_(on, ub_), kept_(on, ub_) {
    targets_ = ub_.take(kAtOnce);
    slots_ = ub_.take(2 * kSlotsAtOnce);
    runs_ = ub_.take(kRunsAtOnce * kRunWords + kRunWords);
    const int32_t others = on.rank.num_aiv - on.rank.ep_size();
    core_ = others > 0 ? on.core - on.rank.ep_size() : on.core;
    num_cores_ = others > 0 ? others : on.rank.num_aiv;
  }

  // Writes this core's part of the table of slots of a route.
  __aicore__ inline void write_slots(int32_t route) {
    if (core_ < 0) return;
    take_route(route);
    const RouteTables tables = on_.rank.image.tables(route, on_.rank.num_aiv);
    const int32_t used = least(route_.num_used_slots(0), on_.rank.image.route(route).num_slots);
    const int32_t part = (used + num_cores_ - 1) / num_cores_, end = least((core_ + 1) * part, used);
    for (int32_t first = core_ * part; first < end; first += kSlotsAtOnce) {
      const int32_t count = least(kSlotsAtOnce, end - first);
      drain_pipes();
      fill_slots(first, count);
      on_.publish();
      on_.write(on_.word(tables.slots + 2 * first), slots_, 2 * count);
    }
  }

  // Loads the first targets while ranks exchange counts, unless a plan has yet to be selected.
  __aicore__ inline void read_first() {
    const int32_t num_events = on_.rank.image.header().num_events;
    const int32_t part = in_lines((num_events + num_cores_ - 1) / num_cores_);
    first_ = most(core_, 0) * part;
    last_ = core_ < 0 ? 0 : least((core_ + 1) * part, num_events);
    drain_pipes();
    if (first_ < last_) read_targets(first_, least(first_ + kAtOnce, last_));
    if (first_ < last_) read_runs(0);
  }

  // Sets this core's targets. Returns BAD_IMAGE for an unknown extent.
  __aicore__ inline Code set() {
    for (int32_t begin = first_; begin < last_; begin += kAtOnce) set_some(begin, least(begin + kAtOnce, last_));
    return on_.unit.code();
  }

 private:
  static constexpr int32_t kAtOnce = 2048, kSlotsAtOnce = 64, kRunsAtOnce = 256,
                           kRunWords = sizeof(EventRun) / sizeof(int32_t);
  static_assert(Placement::kWords + KeptEntries::kWords + kAtOnce + 2 * kSlotsAtOnce + (kRunsAtOnce + 1) * kRunWords <=
                    PrologueUnit::kWords,
                "a route, targets, slots and runs fit UB");

  __aicore__ inline void set_some(int32_t begin, int32_t end) {
    if (begin > first_) {
      drain_pipes();
      read_targets(begin, end);
    }
    const int32_t num_runs = on_.rank.image.header().num_event_runs;
    bool is_done = false;
    for (int32_t first = 0; first < num_runs && !is_done; first += kRunsAtOnce)
      is_done = add_runs(first, least(kRunsAtOnce, num_runs - first), begin, end);
    on_.publish();
    on_.write(address_of(begin), targets_, end - begin);
  }

  __aicore__ inline uint64_t address_of(int32_t event) const {
    return on_.rank.args.targets + static_cast<uint64_t>(event) * sizeof(int32_t);
  }
  __aicore__ inline void read_targets(int32_t begin, int32_t end) { on_.read(targets_, address_of(begin), end - begin); }
  // Returns as many events as fit, including the end of the last.
  __aicore__ inline int32_t num_read(int32_t first) const {
    return least(kRunsAtOnce + 1, on_.rank.image.header().num_event_runs - first);
  }
  __aicore__ inline void read_runs(int32_t first) {
    const uint64_t from = on_.rank.args.image + on_.rank.image.header().event_runs_offset;
    on_.read(runs_, from + static_cast<uint64_t>(first) * sizeof(EventRun), num_read(first) * kRunWords);
    first_run_ = first;
  }

  // Adds the runs among `count` runs from `first` on that overlap events [begin, end). Returns true if the last of these
  // events is among them.
  __aicore__ inline bool add_runs(int32_t first, int32_t count, int32_t begin, int32_t end) {
    const int32_t read = num_read(first);
    if (first != first_run_) {
      drain_pipes();
      read_runs(first);
    }
    on_.unit.wait_for_loads();
    int32_t from_run = 0;
    while (from_run + 1 < read && first_of(from_run + 1) <= begin) ++from_run;
    int32_t to_run = from_run;
    while (to_run < count && first_of(to_run) < end) ++to_run;
    for (int32_t i = from_run; i < to_run; ++i) add_run(i, read, begin, end, true);
    on_.unit.wait_for_results();
    for (int32_t i = from_run; i < to_run; ++i) add_run(i, read, begin, end, false);
    return to_run < count;
  }
  __aicore__ inline int32_t first_of(int32_t run) const { return runs_.GetValue(run * kRunWords); }
  __aicore__ inline EventRun run_at(int32_t i) const {
    const int32_t at = i * kRunWords;
    return {runs_.GetValue(at), runs_.GetValue(at + 1), runs_.GetValue(at + 2), runs_.GetValue(at + 3),
            runs_.GetValue(at + 4)};
  }

  __aicore__ inline void take_route(int32_t route) {
    if (route != last_route_) route_.init(route);
    last_route_ = route;
  }
  __aicore__ inline void fill_slots(int32_t first, int32_t count) {
    int32_t e = route_.expert_of_slot(0, first);
    ExpertSlots slots = route_.expert_slots(0, e);
    for (int32_t i = 0; i < count; ++i) {
      while (route_.first_slot(0, e + 1) <= first + i) ++e;
      if (e != slots.expert) slots = route_.expert_slots(0, e);
      const Unit rows = slots.unit(first + i, route_.expert_start(0, e + 1));
      slots_.SetValue(2 * i, rows.start);
      slots_.SetValue(2 * i + 1, rows.rows | e << kSlotBits);
    }
  }

  // Adds a run: first the part for vector instructions, later the part for the scalar unit.
  __aicore__ inline void add_run(int32_t i, int32_t num_runs, int32_t begin, int32_t end, bool by_vector) {
    const EventRun run = run_at(i);
    const int32_t first = most(run.first, begin);
    const int32_t last = i + 1 < num_runs ? least(first_of(i + 1), end) : end;
    if (run.route >= 0) take_route(run.route);
    const auto extent = static_cast<Extent>(run.extent);
    if (extent == Extent::ONE || extent == Extent::STATIC_TILE)
      return add_alike(first - begin, last - begin, run.mult, by_vector);
    if (extent == Extent::SLOT && run.route >= 0) return add_slots(run, first, last, begin, by_vector);
    if (by_vector) return;
    if (extent == Extent::TILE_ENTRIES && run.route >= 0 && !route_.keeps_all()) return add_kept(run, first, last, begin);
    for (int32_t event = first; event < last; ++event) add_one(run, event, begin);
  }
  __aicore__ inline void add(int32_t place, int32_t amount) {
    targets_.SetValue(place, wrapping_sum(targets_.GetValue(place), amount));
  }

  // Adds an equal amount to events; vector instructions begin at blocks of 32 bytes.
  __aicore__ inline void add_alike(int32_t first, int32_t last, int32_t amount, bool by_vector) {
    const int32_t whole = least(round_up(first, kBlockBytes / 4), last);
    if (by_vector && whole < last) AscendC::Adds(targets_[whole], targets_[whole], amount, last - whole);
    for (int32_t i = first; i < whole && !by_vector; ++i) add(i, amount);
  }

  // Adds the rows of slots: all slots of an expert are full except the last, and slots after all experts are empty.
  __aicore__ inline void add_slots(const EventRun& run, int32_t first, int32_t last, int32_t begin, bool by_vector) {
    const int32_t to_event = run.first - run.index, tile_rows = on_.rank.tile_rows();
    const int32_t end = least(last, to_event + route_.num_used_slots(0));
    if (first >= end) return;
    add_alike(first - begin, end - begin, run.mult * tile_rows, by_vector);
    if (by_vector) return;
    for (int32_t e = route_.expert_of_slot(0, first - to_event); e < route_.num_local_experts(); ++e) {
      if (to_event + route_.first_slot(0, e) >= end) return;
      if (route_.first_slot(0, e) == route_.first_slot(0, e + 1)) continue;
      const ExpertSlots slots = route_.expert_slots(0, e);
      const int32_t rows = slots.unit(slots.last(), route_.expert_start(0, e + 1)).rows;
      const int32_t event = to_event + slots.last();
      if (event >= first && event < end) add(event - begin, run.mult * (rows - tile_rows));
    }
  }

  // Adds kept entries; the first tile also has the padding rows.
  __aicore__ inline void add_kept(const EventRun& run, int32_t first, int32_t last, int32_t begin) {
    const int32_t tile = run.index + first - run.first, padding = tile == 0 ? route_.padding(0) : 0;
    kept_.init(run.route, tile, tile + last - first);
    add(first - begin, run.mult * padding);
    for (int32_t event = first; event < last; ++event) add(event - begin, run.mult * kept_.next());
  }

  __aicore__ inline void add_one(const EventRun& run, int32_t event, int32_t begin) {
    const PlacedRoute* const route = run.route >= 0 ? &route_ : nullptr;
    const auto extent = static_cast<int32_t>(find_extent<Unit>(on_.rank, run, run.index + event - run.first, route));
    if (extent != kUnknownExtent) return add(event - begin, run.mult * extent);
    on_.unit.refuse();
    if (on_.status.event < 0) on_.status.event = event;
  }

  PrologueUnit& on_;
  UbWords ub_;
  PlacedRoute route_;
  KeptEntries kept_;
  Words targets_, runs_, slots_;
  int32_t first_ = 0, last_ = 0;  // this core's events
  int32_t core_ = 0, num_cores_ = 1;  // of the cores that share events and slots
  int32_t first_run_ = -1, last_route_ = -1;
};

}  // namespace hpmoe

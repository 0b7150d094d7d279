#include "launch.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "../launch_args.h"
#include "../tables.h"
#include "core/numbers.h"
#include "core/stuck.h"
#include "kernel.h"

namespace emulator {
namespace {

using hpmoe::Code;

using hpmoe::PlanImage;

hpmoe::RouteTables last_tables(const hpmoe::Image& image) {
  hpmoe::RouteTables tables{};
  for (int32_t r = 0; r < image.header->num_routes; ++r) {
    const hpmoe::Route& route = image.routes[r];
    const hpmoe::RouteWords words{
        route.ids_buffer, route.num_experts,   route.num_local_experts, route.top_k,       route.num_slots, route.num_tokens,
        route.max_rows,   route.drop_policy,   route.weights_buffer,    route.first_share, route.of,        route.over,
        route.first_stop, route.return_tokens, route.alignment,         route.tp_size};
    tables = hpmoe::lay_out(words, image.header->ep_size, image.header->num_queues / 3 * 2,
                            r > 0 ? tables.end : hpmoe::kFirstTables);
  }
  return tables;
}

}  // namespace

int64_t table_words(const Plans& plans) {
  int32_t words = 16;
  for (const PlanImage& plan : plans) words = std::max(words, last_tables(plan.image).end);
  return words;
}

int64_t num_counters(const Plans& plans) {
  return hpmoe::most_events(plans) + hpmoe::num_prologue_counters(plans.front().image.header->ep_size);
}

Launch::Launch(const void* image, int64_t image_bytes, const HpmoeEmulatorRank* ranks, const Run& run, Counts& counts,
               const HpmoePeers* peers)
    : plans_(hpmoe::plans_of(image)),
      image_(plans_.front().image),
      ranks_(ranks),
      run_(run),
      peers_(peers),
      counts_(counts),
      first_(peers ? peers->rank : 0),
      last_(peers ? peers->rank + 1 : image_.header->ep_size),
      num_blocks_(image_.header->num_queues / 3),
      image_copy_(image_bytes) {
  std::memcpy(image_copy_.begin(), image, image_bytes);
  memory_.peers = peers;
  memory_.add({"the image", -1, -1, image_copy_.begin(), static_cast<uint64_t>(image_bytes)});
  for (int32_t rank = 0; rank < image_.header->ep_size; ++rank) add_symmetric(rank);
  for (int32_t rank = first_; rank < last_; ++rank) add_rank(rank);
  draw_beginnings();
  for (int32_t launch = 0; launch < run.num_launches; ++launch) {
    for (int32_t rank = first_; rank < last_; ++rank) {
      add_launch(rank, launch);
      add_cores(rank, counts);
    }
  }
  Scheduler(cores_, run.seed, peers).run();
}

HpmoeStatus Launch::status() {
  std::vector<hpmoe::Stand> stands;
  HpmoeStatus first{};
  bool is_aborted = false;
  counts_.plan = plan_taken();
  counts_.system_us = now() / kSystemCyclesPerUs;
  for (size_t i = 0; i < statuses_.size(); ++i) {
    const auto* left = reinterpret_cast<const hpmoe::CoreStatus*>(statuses_[i].begin());
    void* const told = ranks_[first_ + static_cast<int32_t>(i) % num_served()].statuses;
    if (told) std::memcpy(told, left, sizeof(hpmoe::CoreStatus) * image_.header->num_queues);
    for (int32_t q = 0; q < image_.header->num_queues; ++q) {
      const hpmoe::Status& status = left[q].status;
      if (status.code == 0) continue;
      const bool is_cause = status.code != static_cast<int32_t>(Code::ABORTED_PEER);
      if (first.code == 0 && is_cause) {
        first = status;
        counts_.plan = left[q].plan;
      }
      is_aborted = true;
      const int32_t rank = first_ + static_cast<int32_t>(i) % num_served();
      stands.push_back({rank, q, std::max(left[q].next_task, plans_[left[q].plan].image.queues[q]), status});
    }
  }
  const hpmoe::Image& taken = plans_[counts_.plan].image;
  if (first.code == static_cast<int32_t>(Code::TIMEOUT)) first = hpmoe::find_lost_signal(taken, stands, first);
  if (first.code == 0 && is_aborted && peers_) return stands.front().wait;  // another process knows why
  if (first.code != 0 && first.event >= 0) to_this_launch(first);
  if (first.code != 0) return first;
  await_signals();
  return find_wrong_count();
}

uint64_t Launch::counter_words() const { return static_cast<uint64_t>(num_counters(plans_)) * hpmoe::kCounterWords; }

// Registers the memory of a rank that other ranks access.
void Launch::add_symmetric(int32_t rank) {
  const HpmoeEmulatorRank& theirs = ranks_[rank];
  for (const PlanImage& plan : plans_) {
    for (int32_t b = 0; b < plan.image.header->num_buffers; ++b) {
      const int32_t at = plan.place.first_word + b;
      if (!theirs.symmetric[at]) continue;
      memory_.add({"buffer " + std::to_string(b), rank, 3 + at, static_cast<uint8_t*>(theirs.buffers[at]),
                   static_cast<uint64_t>(theirs.sizes[at])});
    }
  }
  memory_.add({"the counters", rank, 0, reinterpret_cast<uint8_t*>(theirs.counters), counter_words() * sizeof(int32_t)});
  const auto words = static_cast<uint64_t>(table_words(plans_));
  for (int32_t launch = 0; launch < std::min(run_.num_launches, 2); ++launch) {
    const int32_t half = hpmoe::wrapping_sum(run_.epoch, launch) & 1;
    int32_t* const tables = theirs.tables + half * words;
    if (is_served(rank) && !peers_) std::fill_n(tables, words, -1);  // else before the ranks met
    memory_.add({"the routing tables", rank, 1 + half, reinterpret_cast<uint8_t*>(tables), words * sizeof(int32_t)});
  }
}

void Launch::add_rank(int32_t rank) {
  const HpmoeEmulatorRank& mine = ranks_[rank];
  const hpmoe::PlanPlace end = hpmoe::end_of(plans_);
  before_.emplace_back(mine.targets, mine.targets + hpmoe::most_events(plans_));
  pointers_.emplace_back(sizeof(uint64_t) * end.first_word);
  auto* pointers = reinterpret_cast<uint64_t*>(pointers_.back().begin());
  for (const PlanImage& plan : plans_) {
    const hpmoe::Header& h = *plan.image.header;
    for (int32_t b = 0; b < h.num_buffers; ++b) {
      const int32_t at = plan.place.first_word + b;
      pointers[at] = reinterpret_cast<uint64_t>(mine.buffers[at]);
      if (mine.symmetric[at]) continue;
      memory_.add({"buffer " + std::to_string(b), rank, -1, static_cast<uint8_t*>(mine.buffers[at]),
                   static_cast<uint64_t>(mine.sizes[at])});
    }
    for (int32_t r = 0; r < h.num_routes; ++r)
      pointers[plan.place.first_word + h.num_buffers + r] = static_cast<uint64_t>(
          hpmoe::capacity_of_expert(plan.image.routes[r], mine.num_tokens));
  }
  memory_.add({"the table of buffers", rank, -1, pointers_.back().begin(), sizeof(uint64_t) * end.first_word});
  memory_.add(
      {"the targets", rank, -1, reinterpret_cast<uint8_t*>(mine.targets), sizeof(int32_t) * hpmoe::most_events(plans_)});
}

// Launches of a rank follow each other in its stream, independently of other ranks.
void Launch::add_launch(int32_t rank, int32_t launch) {
  const HpmoeEmulatorRank& mine = ranks_[rank];
  const int32_t epoch = hpmoe::wrapping_sum(run_.epoch, launch);
  statuses_.emplace_back(sizeof(hpmoe::CoreStatus) * image_.header->num_queues);
  args_.emplace_back(sizeof(hpmoe::LaunchArgs));
  memory_.add(
      {"the status block", rank, -1, statuses_.back().begin(), sizeof(hpmoe::CoreStatus) * image_.header->num_queues});
  memory_.add({"the arguments", rank, -1, args_.back().begin(), sizeof(hpmoe::LaunchArgs)});
  const auto address = [](const void* pointer) { return reinterpret_cast<uint64_t>(pointer); };
  const hpmoe::LaunchArgs args{address(image_copy_.begin()),
                               address(pointers_[rank - first_].begin()),
                               address(mine.counters),
                               address(mine.targets),
                               address(mine.tables + (epoch & 1) * table_words(plans_)),
                               address(statuses_.back().begin()),
                               hpmoe::in_microseconds(run_.timeout_s),
                               rank,
                               static_cast<int32_t>(mine.num_tokens),
                               epoch,
                               num_blocks_};
  std::memcpy(args_.back().begin(), &args, sizeof(args));
}

// Adds the cores of the launch that was added last.
void Launch::add_cores(int32_t rank, Counts& counts) {
  const size_t each = static_cast<size_t>(3 * num_blocks_), of_all = each * num_served();
  const size_t first = cores_.size(), before = first < of_all ? first : first - of_all;
  uint8_t* const args = args_.back().begin();
  for (size_t i = 0; i < each; ++i) {
    cores_.push_back(std::make_unique<Core>(rank, i % 3 == 0, static_cast<int>(i / 3), i % 3 == 2, memory_, counts));
    leave_stale_lines(*cores_.back(), rank, args, run_.seed + cores_.size());
    cores_.back()->start([this, rank, args, first, before, each] {
      first == before ? begin(rank) : wait_for_end(before, each);
      run_kernel(args);
    });
  }
}

void Launch::wait_for_end(size_t first, size_t count) {
  current().wait_until(
      [this, first, count] {
        return std::all_of(&cores_[first], &cores_[first] + count, [](const auto& core) { return core->has_ended(); });
      },
      "the launch before this one");
}

// Delays some ranks until others are far ahead.
void Launch::draw_beginnings() {
  constexpr uint64_t kLatest = 4096;
  std::mt19937_64 random(~run_.seed);
  for (int32_t rank = 0; rank < image_.header->ep_size; ++rank)
    beginnings_.push_back({static_cast<int64_t>(random() % 2 * (random() % kLatest)), false});
}

void Launch::begin(int32_t rank) {
  while (now() < beginnings_[rank].cycle) current().pause();
  if (beginnings_[rank].is_over) return;
  beginnings_[rank].is_over = true;
  if (ranks_[rank].begin) ranks_[rank].begin(ranks_[rank].of);
}

// Fills the cache with stale lines, as if an earlier kernel had read the memory of this one's state.
void Launch::leave_stale_lines(Core& core, int32_t rank, const uint8_t* args, uint64_t seed) {
  const HpmoeEmulatorRank& mine = ranks_[rank];
  for (uint64_t i = seed % 2; i < counter_words(); i += 32) core.cache.leave_stale(mine.counters + i);
  for (int32_t i = 0; i < hpmoe::most_events(plans_); i += 16) core.cache.leave_stale(mine.targets + i);
  for (uint64_t i = 0; i < sizeof(hpmoe::Header); i += 64) core.cache.leave_stale(image_copy_.begin() + i);
  core.cache.leave_stale(args);
}

void Launch::to_this_launch(HpmoeStatus& status) const {
  const int32_t base = before_[status.rank - first_][status.event];
  status.value -= base;
  status.threshold -= base;
}

// Waits for the last signals of other processes; afterwards no process writes to the arrays of this rank.
void Launch::await_signals() const {
  while (peers_ && find_wrong_count().code != 0) {
    const auto code = static_cast<Code>(peers_->look(peers_->launch, 1));
    if (code == Code::TIMEOUT) return;
    if (code != Code::OK) throw Lost{code};
  }
}

HpmoeStatus Launch::find_wrong_count() const {
  const int64_t before = hpmoe::num_prologue_counters(image_.header->ep_size);
  for (int32_t rank = first_; rank < last_; ++rank) {
    for (int32_t e = 0; e < hpmoe::most_events(plans_); ++e) {
      const int32_t* const counter = &ranks_[rank].counters[(before + e) * hpmoe::kCounterWords];
      const int32_t value = __atomic_load_n(counter, __ATOMIC_ACQUIRE), target = ranks_[rank].targets[e];
      if (value == target) continue;
      HpmoeStatus status{static_cast<int32_t>(Code::WRONG_COUNT), rank, -1, -1, e, -1, value, target};
      to_this_launch(status);
      return status;
    }
  }
  return {};
}

// The plan that the last launch selected.
int32_t Launch::plan_taken() const {
  if (plans_.size() == 1) return 0;
  const int32_t half = hpmoe::wrapping_sum(run_.epoch, run_.num_launches - 1) & 1;
  return std::max(ranks_[first_].tables[half * table_words(plans_) + hpmoe::kChosenPlan], 0);
}

}  // namespace emulator

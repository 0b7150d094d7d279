// A launch: the memory of every rank, a core of the twin for each of the kernel's, and what came of it.
#include "api.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "../launch_args.h"
#include "../tables.h"
#include "core/image.h"
#include "core/stuck.h"
#include "scheduler.h"

extern "C" void hpmoe_persistent(uint8_t* args);

namespace {

using hpmoe::Code;

HpmoeKernel chosen_kernel = hpmoe_persistent;

// A private copy of words, from a line of 64 bytes on.
class Lines {
 public:
  explicit Lines(uint64_t bytes) : words_(bytes / 8 + 16) {
    const auto address = reinterpret_cast<uintptr_t>(words_.data());
    begin_ = reinterpret_cast<uint8_t*>((address + 63) / 64 * 64);
  }
  uint8_t* begin() { return begin_; }

 private:
  std::vector<uint64_t> words_;
  uint8_t* begin_;
};

hpmoe::RouteTables last_tables(const hpmoe::Image& image) {
  hpmoe::RouteTables tables{};
  for (int32_t r = 0; r < image.header->num_routes; ++r) {
    const hpmoe::Route& route = image.routes[r];
    const hpmoe::RouteWords words{route.ids_buffer,     route.num_experts, route.num_local_experts, route.top_k,
                                  route.num_slots,      route.num_tokens,  route.max_rows,          route.drop_policy,
                                  route.weights_buffer, route.first_share, route.once_of,           route.return_tokens,
                                  route.alignment};
    tables = hpmoe::lay_out(words, image.header->ep_size, image.header->num_queues / 3 * 2,
                            r > 0 ? tables.end : hpmoe::kUnitWords);
  }
  return tables;
}

int64_t table_words(const hpmoe::Image& image) { return std::max(last_tables(image).end, 16); }

int64_t num_counters(const hpmoe::Image& image) {
  return image.header->num_events + hpmoe::num_prologue_counters(image.header->ep_size);
}

class TwinLaunch {
 public:
  TwinLaunch(const void* image, int64_t image_bytes, const HpmoeTwinRank* ranks, int32_t epoch, int32_t num_launches,
             double timeout_s, uint64_t seed, twin::Counts& counts)
      : image_(image), ranks_(ranks), num_blocks_(image_.header->num_queues / 3), image_copy_(image_bytes) {
    std::memcpy(image_copy_.begin(), image, image_bytes);
    memory_.add({"the image", -1, -1, image_copy_.begin(), static_cast<uint64_t>(image_bytes)});
    for (int32_t rank = 0; rank < image_.header->ep_size; ++rank) add_rank(rank);
    draw_beginnings(seed);
    for (int32_t launch = 0; launch < num_launches; ++launch)
      for (int32_t rank = 0; rank < image_.header->ep_size; ++rank) {
        add_launch(rank, epoch, launch, timeout_s);
        add_cores(rank, counts, seed);
      }
    twin::Scheduler(cores_, seed).run();
  }

  HpmoeStatus status() {
    std::vector<hpmoe::Stand> stands;
    HpmoeStatus first{};
    for (size_t i = 0; i < statuses_.size(); ++i) {
      const auto* left = reinterpret_cast<const hpmoe::CoreStatus*>(statuses_[i].begin());
      for (int32_t q = 0; q < image_.header->num_queues; ++q) {
        const hpmoe::Status& status = left[q].status;
        if (status.code == 0) continue;
        const bool is_cause = status.code != static_cast<int32_t>(Code::ABORTED_PEER);
        if (first.code == 0 && is_cause) first = status;
        const int32_t rank = static_cast<int32_t>(i) % image_.header->ep_size;
        stands.push_back({rank, q, std::max(left[q].next_task, image_.queues[q]), status});
      }
    }
    if (first.code == static_cast<int32_t>(Code::TIMEOUT)) first = hpmoe::find_lost_signal(image_, stands, first);
    if (first.code != 0 && first.event >= 0) to_this_launch(first);
    return first.code == 0 ? find_wrong_count() : first;
  }

 private:
  void add_rank(int32_t rank) {
    const HpmoeTwinRank& mine = ranks_[rank];
    const hpmoe::Header& h = *image_.header;
    before_.emplace_back(mine.targets, mine.targets + h.num_events);
    pointers_.emplace_back(sizeof(uint64_t) * (h.num_buffers + h.num_routes));
    auto* pointers = reinterpret_cast<uint64_t*>(pointers_.back().begin());
    for (int32_t b = 0; b < h.num_buffers; ++b) {
      pointers[b] = reinterpret_cast<uint64_t>(mine.buffers[b]);
      memory_.add({"buffer " + std::to_string(b), rank, mine.symmetric[b] ? 3 + b : -1,
                   static_cast<uint8_t*>(mine.buffers[b]), static_cast<uint64_t>(mine.sizes[b])});
    }
    for (int32_t r = 0; r < h.num_routes; ++r)
      pointers[h.num_buffers + r] = static_cast<uint64_t>(hpmoe::capacity_of_expert(image_.routes[r], mine.num_tokens));
    memory_.add(
        {"the table of buffers", rank, -1, pointers_.back().begin(), sizeof(uint64_t) * (h.num_buffers + h.num_routes)});
    memory_.add({"the counters", rank, 0, reinterpret_cast<uint8_t*>(mine.counters), counter_words() * sizeof(int32_t)});
    memory_.add({"the targets", rank, -1, reinterpret_cast<uint8_t*>(mine.targets), sizeof(int32_t) * h.num_events});
  }

  // Launches of a rank follow each other in its stream, whatever the other ranks do.
  void add_launch(int32_t rank, int32_t first_epoch, int32_t launch, double timeout_s) {
    const HpmoeTwinRank& mine = ranks_[rank];
    const int32_t epoch = first_epoch + launch;
    const uint64_t words = table_words(image_);
    int32_t* const tables = mine.tables + epoch % 2 * words;
    if (launch < 2) {
      std::fill_n(tables, words, -1);
      memory_.add({"the routing tables", rank, 1 + epoch % 2, reinterpret_cast<uint8_t*>(tables), words * sizeof(int32_t)});
    }
    statuses_.emplace_back(sizeof(hpmoe::CoreStatus) * image_.header->num_queues);
    args_.emplace_back(sizeof(hpmoe::LaunchArgs));
    memory_.add(
        {"the status block", rank, -1, statuses_.back().begin(), sizeof(hpmoe::CoreStatus) * image_.header->num_queues});
    memory_.add({"the arguments", rank, -1, args_.back().begin(), sizeof(hpmoe::LaunchArgs)});
    const auto address = [](const void* pointer) { return reinterpret_cast<uint64_t>(pointer); };
    const double cycles = std::min(timeout_s, 1e9) * 50e6;
    const hpmoe::LaunchArgs args{address(image_copy_.begin()),
                                 address(pointers_[rank].begin()),
                                 address(mine.counters),
                                 address(mine.targets),
                                 address(tables),
                                 address(statuses_.back().begin()),
                                 static_cast<int64_t>(cycles),
                                 rank,
                                 static_cast<int32_t>(mine.num_tokens),
                                 epoch,
                                 num_blocks_};
    std::memcpy(args_.back().begin(), &args, sizeof(args));
  }

  // The cores of the launch that was added last.
  void add_cores(int32_t rank, twin::Counts& counts, uint64_t seed) {
    const size_t each = static_cast<size_t>(3 * num_blocks_), of_all = each * image_.header->ep_size;
    const size_t first = cores_.size(), before = first < of_all ? first : first - of_all;
    uint8_t* const args = args_.back().begin();
    for (size_t i = 0; i < each; ++i) {
      cores_.push_back(std::make_unique<twin::Core>(rank, i % 3 == 0, static_cast<int>(i / 3), i % 3 == 2, memory_, counts));
      leave_stale_lines(*cores_.back(), rank, args, seed + cores_.size());
      cores_.back()->start([this, rank, args, first, before, each] {
        first == before ? begin(rank) : wait_for_end(before, each);
        chosen_kernel(args);
      });
    }
  }

  void wait_for_end(size_t first, size_t count) {
    twin::current().wait_until(
        [this, first, count] {
          return std::all_of(&cores_[first], &cores_[first] + count, [](const auto& core) { return core->has_ended(); });
        },
        "the launch before this one");
  }

  // Some ranks begin when others are well under way.
  void draw_beginnings(uint64_t seed) {
    constexpr uint64_t kLatest = 4096;
    std::mt19937_64 random(~seed);
    for (int32_t rank = 0; rank < image_.header->ep_size; ++rank)
      beginnings_.push_back({static_cast<int64_t>(random() % 2 * (random() % kLatest)), false});
  }

  void begin(int32_t rank) {
    while (twin::now() < beginnings_[rank].cycle) twin::current().pause();
    if (beginnings_[rank].is_over) return;
    beginnings_[rank].is_over = true;
    if (ranks_[rank].begin) ranks_[rank].begin(ranks_[rank].of);
  }

  // An earlier kernel has read what lies where this one's state does.
  void leave_stale_lines(twin::Core& core, int32_t rank, const uint8_t* args, uint64_t seed) {
    const HpmoeTwinRank& mine = ranks_[rank];
    for (uint64_t i = seed % 2; i < counter_words(); i += 32) core.cache.leave_stale(mine.counters + i);
    for (int32_t i = 0; i < image_.header->num_events; i += 16) core.cache.leave_stale(mine.targets + i);
    for (uint64_t i = 0; i < sizeof(hpmoe::Header); i += 64) core.cache.leave_stale(image_copy_.begin() + i);
    core.cache.leave_stale(args);
  }

  uint64_t counter_words() const { return static_cast<uint64_t>(num_counters(image_)) * hpmoe::kCounterWords; }

  void to_this_launch(HpmoeStatus& status) const {
    const int32_t base = before_[status.rank][status.event];
    status.value -= base;
    status.threshold -= base;
  }

  HpmoeStatus find_wrong_count() const {
    for (int32_t rank = 0; rank < image_.header->ep_size; ++rank) {
      for (int32_t e = 0; e < image_.header->num_events; ++e) {
        const int32_t value = ranks_[rank].counters[e * hpmoe::kCounterWords], target = ranks_[rank].targets[e];
        if (value == target) continue;
        HpmoeStatus status{static_cast<int32_t>(Code::WRONG_COUNT), rank, -1, -1, e, -1, value, target};
        to_this_launch(status);
        return status;
      }
    }
    return {};
  }

  struct Beginning {
    int64_t cycle;
    bool is_over;
  };

  const hpmoe::Image image_;
  const HpmoeTwinRank* const ranks_;
  const int32_t num_blocks_;
  twin::GlobalMemory memory_;
  Lines image_copy_;
  std::vector<Lines> pointers_, statuses_, args_;
  std::vector<std::vector<int32_t>> before_;
  std::vector<Beginning> beginnings_;
  std::vector<std::unique_ptr<twin::Core>> cores_;
};

}  // namespace

extern "C" {

int32_t hpmoe_twin_abi_version(void) { return kTwinAbiVersion; }

void hpmoe_twin_use_kernel(HpmoeKernel kernel) { chosen_kernel = kernel ? kernel : hpmoe_persistent; }

int64_t hpmoe_twin_table_words(const void* image) { return table_words(hpmoe::Image(image)); }
int32_t hpmoe_twin_counter_words() { return hpmoe::kCounterWords; }
int64_t hpmoe_twin_counters(const void* image) { return num_counters(hpmoe::Image(image)); }

int hpmoe_twin_launch(const void* image, int64_t image_bytes, const HpmoeTwinRank* ranks, int32_t num_ranks, int32_t epoch,
                      int32_t num_launches, double timeout_s, uint64_t seed, HpmoeStatus* status, twin::Counts* counts,
                      char* fault, int64_t fault_bytes) {
  (void)num_ranks;
  *status = {};
  *counts = {};
  try {
    TwinLaunch launch(image, image_bytes, ranks, epoch, num_launches, timeout_s, seed, *counts);
    *status = launch.status();
    return status->code == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::strncpy(fault, error.what(), fault_bytes - 1);
    fault[fault_bytes - 1] = '\0';
    return 2;
  }
}

}  // extern "C"

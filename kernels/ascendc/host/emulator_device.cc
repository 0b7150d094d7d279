// The device of a rank on the emulator: ranks of one process, whose streams run when every rank has reached its next
// launch.
//
// A launch begins after the host has continued, as on an NPU. If the host waits for a launch that other ranks have not
// reached, it gets an error; on an NPU it would hang.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>

#include "device.h"
#include "launch_args.h"
#include "plan_images.h"
#include "emulator/api.h"

namespace hpmoe {
namespace {

constexpr size_t kLine = 64;
constexpr uint32_t kNumCores = 24;
std::atomic<uint64_t> next_seed{0};

size_t in_whole_lines(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

struct Launch {
  LaunchArgs* args;
  std::vector<Span> buffers;
};

// The next operation of a stream: a launch, or an operation of this rank alone.
struct Step {
  std::shared_ptr<Launch> launch;
  std::function<void()> act;
};

// Writes of a rank's host to the symmetric heap since the last meeting. They may arrive after other ranks' kernels have
// begun, so they are written again then.
struct Unmet {
  uint8_t* to;
  std::vector<uint8_t> bytes;
};

struct Member {
  std::deque<Step> steps;
  std::vector<Unmet> unmet;
};

// The ranks that were opened with one unique id.
struct World {
  std::recursive_mutex mutex;
  std::map<int32_t, Member*> members;

  void advance(int32_t num_ranks);
  void run_together(int32_t num_ranks);
};

// Writes a failure that the emulator found although all cores of the rank ended without one.
void leave_status(const Launch& launch, const HpmoeStatus& status, int64_t plan, int32_t rank, int32_t num_queues) {
  auto* const left = reinterpret_cast<CoreStatus*>(launch.args->status);
  if (std::any_of(left, left + num_queues, [](const CoreStatus& core) { return core.status.code != 0; })) return;
  const bool is_here = status.rank == rank || status.rank < 0;
  CoreStatus& mine = left[is_here ? std::max(status.queue, 0) : 0];
  mine.status = status;
  if (!is_here) mine.status = {static_cast<int32_t>(Code::ABORTED_PEER), rank, 0, -1, -1, -1, 0, 0};
  mine.next_task = mine.status.task;
  mine.plan = static_cast<int32_t>(plan);
}

void write_unmet(void* of) {
  auto& unmet = static_cast<Member*>(of)->unmet;
  for (const Unmet& late : unmet) std::memcpy(late.to, late.bytes.data(), late.bytes.size());
  unmet.clear();
}

void World::run_together(int32_t num_ranks) {
  std::vector<HpmoeEmulatorRank> ranks(num_ranks);
  std::vector<std::vector<int64_t>> sizes(num_ranks);
  std::vector<std::vector<uint8_t>> symmetric(num_ranks);
  const LaunchArgs& first = *members.at(0)->steps.front().launch->args;
  const void* const image = reinterpret_cast<const void*>(first.image);
  const int64_t table_bytes = in_whole_lines(hpmoe_emulator_table_words(image) * sizeof(int32_t));
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    const Launch& launch = *members.at(rank)->steps.front().launch;
    const LaunchArgs& args = *launch.args;
    if (args.epoch != first.epoch || args.rank != rank) throw std::runtime_error("the ranks launch different things");
    for (const Span& span : launch.buffers) {
      sizes[rank].push_back(static_cast<int64_t>(span.bytes));
      symmetric[rank].push_back(span.is_symmetric);
    }
    const auto words = [](uint64_t address) { return reinterpret_cast<int32_t*>(address); };
    ranks[rank] = {reinterpret_cast<void**>(args.buffers),
                   sizes[rank].data(),
                   symmetric[rank].data(),
                   words(args.counters),
                   words(args.targets),
                   words(args.tables - (args.epoch & 1) * table_bytes),
                   args.num_tokens,
                   write_unmet,
                   members.at(rank),
                   reinterpret_cast<void*>(args.status)};
  }
  HpmoeStatus status{};
  emulator::Counts counts{};
  char fault[8192] = "";
  const int64_t image_bytes = end_of(plans_of(image)).first_byte;
  const int code = hpmoe_emulator_launch(image, image_bytes, ranks.data(), num_ranks, first.epoch, 1,
                                         static_cast<double>(first.timeout_us) / 1e6, next_seed++, &status, &counts, fault,
                                         sizeof(fault));
  for (int32_t rank = 0; rank < num_ranks && code == 1; ++rank)
    leave_status(*members.at(rank)->steps.front().launch, status, counts.plan, rank,
                 static_cast<const Header*>(image)->num_queues);
  for (auto& member : members) member.second->steps.pop_front();
  if (code == 2) throw std::runtime_error(std::string("the kernel breaks a rule of the hardware: ") + fault);
}

void World::advance(int32_t num_ranks) {
  while (true) {
    bool all_launch = members.size() == static_cast<size_t>(num_ranks);
    for (auto& member : members) {
      std::deque<Step>& steps = member.second->steps;
      while (!steps.empty() && !steps.front().launch) {
        steps.front().act();
        steps.pop_front();
      }
      all_launch = all_launch && !steps.empty();
    }
    if (!all_launch) return;
    run_together(num_ranks);
  }
}

std::shared_ptr<World> find_world(const std::string& unique_id) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<World>> worlds;
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<World> world = worlds[unique_id].lock();
  if (!world) worlds[unique_id] = world = std::make_shared<World>();
  return world;
}

class EmulatorDevice final : public Device {
 public:
  EmulatorDevice(int32_t rank, int32_t num_ranks, const std::string& unique_id, uint64_t heap_bytes)
      : rank_(rank),
        num_ranks_(num_ranks),
        world_(find_world(unique_id)),
        heap_(lines(heap_bytes)),
        heap_bytes_(heap_bytes) {
    const Lock lock(world_->mutex);
    if (!world_->members.emplace(rank, &member_).second) throw std::runtime_error("the rank has a device already");
  }
  ~EmulatorDevice() override {
    const Lock lock(world_->mutex);
    world_->members.erase(rank_);
  }

  void* allocate_symmetric(size_t bytes) override {
    const size_t begin = used_, end = begin + in_whole_lines(bytes);
    if (end > heap_bytes_) throw std::runtime_error("the symmetric heap has no " + std::to_string(bytes) + " bytes left");
    used_ = end;
    note_unmet(heap_.get() + begin, end - begin);
    return heap_.get() + begin;
  }
  void* allocate(size_t bytes) override {
    auto memory = lines(bytes);
    void* const begin = memory.get();
    memory_.emplace(begin, std::move(memory));
    return begin;
  }
  void free(void* memory) override { memory_.erase(memory); }
  void* allocate_host(size_t bytes) override { return allocate(bytes); }
  void free_host(void* memory) override { free(memory); }

  void fill(void* to, const void* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
    if (to >= heap_.get() && to < heap_.get() + heap_bytes_) note_unmet(to, bytes);
  }

  void copy_in(void* to, const void* from, size_t bytes, void* stream) override { copy(to, from, bytes, stream); }
  void copy_out(void* to, const void* from, size_t bytes, void* stream) override { copy(to, from, bytes, stream); }
  void copy(void* to, const void* from, size_t bytes, void*) override {
    then([=] { std::memcpy(to, from, bytes); });
  }
  void launch(uint32_t, void*, void* args, const std::vector<Span>& buffers) override {
    const Lock lock(world_->mutex);
    member_.steps.push_back({std::make_shared<Launch>(Launch{static_cast<LaunchArgs*>(args), buffers}), nullptr});
    world_->advance(num_ranks_);
  }
  void hold(std::shared_ptr<void> owner, void*) override {
    then([owner] {});
  }

  void* new_mark() override { return new bool(false); }
  void free_mark(void* mark) override { delete static_cast<bool*>(mark); }
  void set(void* mark, void*) override {
    const Lock lock(world_->mutex);
    *static_cast<bool*>(mark) = false;
    then([mark] { *static_cast<bool*>(mark) = true; });
  }
  bool has_passed(void* mark) override {
    const Lock lock(world_->mutex);
    return *static_cast<bool*>(mark);
  }
  void wait_for(void* mark) override {
    if (!has_passed(mark)) throw_stuck();
  }
  void synchronize() override {
    const Lock lock(world_->mutex);
    if (!member_.steps.empty()) throw_stuck();
  }
  // No launch runs before all ranks have met, so this rank's writes have arrived.
  void meet() override { member_.unmet.clear(); }

  uint32_t num_cores() override { return kNumCores; }

 private:
  using Lock = std::lock_guard<std::recursive_mutex>;
  using Lines = std::unique_ptr<uint8_t, void (*)(void*)>;

  static Lines lines(size_t bytes) {
    const size_t whole = in_whole_lines(bytes + 1);
    Lines memory(static_cast<uint8_t*>(std::aligned_alloc(kLine, whole)), std::free);
    if (!memory) throw std::runtime_error("no memory for " + std::to_string(bytes) + " bytes");
    std::memset(memory.get(), 0, whole);
    return memory;
  }
  void then(std::function<void()> act) {
    const Lock lock(world_->mutex);
    member_.steps.push_back({nullptr, std::move(act)});
    world_->advance(num_ranks_);
  }
  void note_unmet(void* to, size_t bytes) {
    auto* const begin = static_cast<uint8_t*>(to);
    member_.unmet.push_back({begin, std::vector<uint8_t>(begin, begin + bytes)});
  }
  [[noreturn]] void throw_stuck() const {
    throw std::runtime_error("rank " + std::to_string(rank_) + " waits for a launch that other ranks have not reached");
  }

  const int32_t rank_, num_ranks_;
  const std::shared_ptr<World> world_;
  const Lines heap_;
  const uint64_t heap_bytes_;
  size_t used_ = 0;
  std::map<void*, Lines> memory_;
  Member member_;
};

}  // namespace

std::string make_unique_id() {
  static std::atomic<int> count{0};
  return "world " + std::to_string(count++);
}

std::unique_ptr<Device> open_device(int32_t rank, int32_t num_ranks, const std::string& unique_id, uint64_t heap_bytes) {
  return std::make_unique<EmulatorDevice>(rank, num_ranks, unique_id, heap_bytes);
}

}  // namespace hpmoe

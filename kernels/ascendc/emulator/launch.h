// A launch: the memory of every rank, an emulated core for each of the kernel's, and the result.
#pragma once

#include <vector>

#include "api.h"
#include "../plan_images.h"
#include "scheduler.h"

namespace emulator {

// A private copy of words, aligned to 64 bytes.
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

using Plans = std::vector<hpmoe::PlanImage>;

// Words of a rank's routing tables; the next function is the number of a launch's counters.
int64_t table_words(const Plans& plans);
int64_t num_counters(const Plans& plans);

// The launches in the stream of each rank: their number, the epoch of the first, and the seed of their order.
struct Run {
  int32_t epoch, num_launches;
  double timeout_s;
  uint64_t seed;
};

class Launch {
 public:
  // ranks: if `peers` serve a rank, only its symmetric memory is known. peers: NULL if all ranks are served here.
  Launch(const void* image, int64_t image_bytes, const HpmoeEmulatorRank* ranks, const Run& run, Counts& counts,
         const HpmoePeers* peers = nullptr);

  // Returns how the launch ended; throws Lost like run().
  HpmoeStatus status();

 private:
  int32_t num_served() const { return last_ - first_; }
  bool is_served(int32_t rank) const { return rank >= first_ && rank < last_; }
  uint64_t counter_words() const;
  void add_symmetric(int32_t rank);
  void add_rank(int32_t rank);
  void add_launch(int32_t rank, int32_t launch);
  void add_cores(int32_t rank, Counts& counts);
  void wait_for_end(size_t first, size_t count);
  void draw_beginnings();
  void begin(int32_t rank);
  void leave_stale_lines(Core& core, int32_t rank, const uint8_t* args, uint64_t seed);
  void to_this_launch(HpmoeStatus& status) const;
  void await_signals() const;
  HpmoeStatus find_wrong_count() const;
  int32_t plan_taken() const;

  struct Beginning {
    int64_t cycle;
    bool is_over;
  };

  const Plans plans_;
  const hpmoe::Image& image_;  // of the first plan
  const HpmoeEmulatorRank* const ranks_;
  const Run run_;
  const HpmoePeers* const peers_;
  Counts& counts_;
  const int32_t first_, last_;  // of the ranks that are served here
  const int32_t num_blocks_;
  GlobalMemory memory_;
  Lines image_copy_;
  std::vector<Lines> pointers_, statuses_, args_;
  std::vector<std::vector<int32_t>> before_;
  std::vector<Beginning> beginnings_;
  std::vector<std::unique_ptr<Core>> cores_;
};

}  // namespace emulator

// The C functions of the emulator: a launch of all ranks, or of one whose peers other processes serve.
#include "api.h"

#include <cstring>

#include "../launch_args.h"
#include "kernel.h"
#include "launch.h"

extern "C" void hpmoe_persistent(uint8_t* args);

namespace {

HpmoeKernel chosen_kernel = hpmoe_persistent;

// Calls f(), which returns how a launch has ended. Returns 0 ok, 1 the status says why not, 2 `fault` says why not, after
// the text in `before`.
template <class F>
int report(F f, const std::string& words, HpmoeStatus* status, char* fault, int64_t fault_bytes) {
  *status = {};
  fault[0] = '\0';
  try {
    *status = f();
    return status->code == 0 ? 0 : 1;
  } catch (const emulator::Lost& lost) {
    status->code = static_cast<int32_t>(lost.code);
    return 1;
  } catch (const std::exception& error) {
    std::strncpy(fault, (words + error.what()).c_str(), fault_bytes - 1);
    fault[fault_bytes - 1] = '\0';
    return 2;
  }
}

// The words that another rank sent about its buffers and counters; HpmoeEmulatorLaunch describes them.
class Told {
 public:
  Told(const HpmoePeers& peers, int32_t rank, int32_t num_buffers)
      : heap_(static_cast<uint8_t*>(peers.heaps[rank])), words_(static_cast<const int64_t*>(peers.told[rank])) {
    const int64_t *const offsets = words_ + 2, *const sizes = offsets + num_buffers;
    for (int32_t b = 0; b < num_buffers; ++b) {
      is_symmetric_.push_back(offsets[b] >= 0);
      buffers_.push_back(offsets[b] >= 0 ? heap_ + offsets[b] : nullptr);
      sizes_.push_back(sizes[b]);
    }
  }
  HpmoeEmulatorRank rank() {
    const auto at = [this](int64_t offset) { return reinterpret_cast<int32_t*>(heap_ + offset); };
    return {buffers_.data(), sizes_.data(), is_symmetric_.data(), at(words_[0]), nullptr, at(words_[1]), 0,
            nullptr,         nullptr};
  }

 private:
  uint8_t* const heap_;
  const int64_t* const words_;
  std::vector<void*> buffers_;
  std::vector<int64_t> sizes_;
  std::vector<uint8_t> is_symmetric_;
};

}  // namespace

void emulator::run_kernel(uint8_t* args) { chosen_kernel(args); }

extern "C" {

int32_t hpmoe_emulator_abi_version(void) { return kEmulatorAbiVersion; }
int32_t hpmoe_emulator_chip(void) { return HPMOE_EMULATOR_CHIP; }

void hpmoe_emulator_use_kernel(HpmoeKernel kernel) { chosen_kernel = kernel ? kernel : hpmoe_persistent; }

int64_t hpmoe_emulator_table_words(const void* image) { return emulator::table_words(hpmoe::plans_of(image)); }
int32_t hpmoe_emulator_counter_words() { return hpmoe::kCounterWords; }
int64_t hpmoe_emulator_counters(const void* image) { return emulator::num_counters(hpmoe::plans_of(image)); }
int64_t hpmoe_emulator_targets(const void* image) { return hpmoe::most_events(hpmoe::plans_of(image)); }

int hpmoe_emulator_launch(const void* image, int64_t image_bytes, const HpmoeEmulatorRank* ranks, int32_t num_ranks,
                          int32_t epoch, int32_t num_launches, double timeout_s, uint64_t seed, HpmoeStatus* status,
                          emulator::Counts* counts, char* fault, int64_t fault_bytes) {
  (void)num_ranks;
  *counts = {};
  const auto launch = [&] {
    return emulator::Launch(image, image_bytes, ranks, {epoch, num_launches, timeout_s, seed}, *counts).status();
  };
  return report(launch, "", status, fault, fault_bytes);
}

int hpmoe_emulator_run_rank(void* launch, const HpmoePeers* peers, HpmoeStatus* status, char* fault, int64_t fault_bytes) {
  const HpmoeEmulatorLaunch& it = *static_cast<HpmoeEmulatorLaunch*>(launch);
  *it.counts = {};
  const auto run = [&] {
    std::vector<Told> told;
    std::vector<HpmoeEmulatorRank> ranks;
    for (int32_t rank = 0; rank < peers->size; ++rank)
      told.emplace_back(*peers, rank, hpmoe::Image(it.image).header->num_buffers);
    for (Told& of_rank : told) ranks.push_back(of_rank.rank());
    ranks[peers->rank] = *it.mine;
    return emulator::Launch(it.image, it.image_bytes, ranks.data(), {it.epoch, 1, it.timeout_s, it.seed}, *it.counts, peers)
        .status();
  };
  return report(run, "the kernel breaks a rule of the hardware (seed " + std::to_string(it.seed) + "): ", status, fault,
                fault_bytes);
}

}  // extern "C"

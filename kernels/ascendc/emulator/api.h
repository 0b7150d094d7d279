// The C ABI of the emulator. No exception crosses it.
#pragma once

#include "core/abi.h"
#include "counts.h"

constexpr int32_t kEmulatorAbiVersion = 11;  // changes with this file and counts.h, and in target.py of this folder

extern "C" {

int32_t hpmoe_emulator_abi_version(void);

// Arguments of one rank. sizes: bytes of each buffer; symmetric: true for a buffer in the symmetric heap. For an image of
// several plans both list the buffers of each plan in turn, with a place for each route after a plan's buffers, as in
// ../plans.h. counters [hpmoe_emulator_counters][hpmoe_emulator_counter_words()] and targets [hpmoe_emulator_targets]
// persist between launches and begin as zeros. tables [2][hpmoe_emulator_table_words] is scratch of even and odd
// launches. These three begin at lines of 64 bytes.
struct HpmoeEmulatorRank {
  void** buffers;
  const int64_t* sizes;
  const uint8_t* symmetric;
  int32_t *counters, *targets, *tables;
  int64_t num_tokens;
  // NULL, or a function that is called with `of` when the rank's kernel begins, which may be long after others begin.
  void (*begin)(void* of);
  void* of;
  // NULL, or the memory for the CoreStatus of each queue after a failed launch.
  void* statuses = nullptr;
};

// Selects the kernel that later launches run; NULL selects the one in this library.
typedef void (*HpmoeKernel)(uint8_t* args);
void hpmoe_emulator_use_kernel(HpmoeKernel kernel);

int64_t hpmoe_emulator_table_words(const void* image);
int64_t hpmoe_emulator_counters(const void* image);
int64_t hpmoe_emulator_targets(const void* image);
int32_t hpmoe_emulator_counter_words(void);
int32_t hpmoe_emulator_chip(void);  // 2201 or 3510

// Runs `num_launches` launches in each rank's stream, in an order that depends on `seed`; ranks may be ahead of each
// other. epoch: 1 for the first launch of these counters, then one more for each launch. Returns 0 ok; 1 the kernel
// reported a failure (status); 2 the kernel broke a rule of the hardware, described in `fault`.
int hpmoe_emulator_launch(const void* image, int64_t image_bytes, const HpmoeEmulatorRank* ranks, int32_t num_ranks,
                          int32_t epoch, int32_t num_launches, double timeout_s, uint64_t seed, HpmoeStatus* status,
                          emulator::Counts* counts, char* fault, int64_t fault_bytes);

// A launch of one rank whose peers are ranks of other processes. Before the launch ranks exchange int64 words: the
// offsets of counters and tables in the rank's heap, then the offset of each buffer (-1 if not symmetric), then the bytes
// of each buffer.
struct HpmoeEmulatorLaunch {
  const void* image;
  int64_t image_bytes;
  const HpmoeEmulatorRank* mine;
  int32_t epoch;
  double timeout_s;
  uint64_t seed;
  emulator::Counts* counts;
};

// The callback of hpmoe_link_launch_by; `launch` is an HpmoeEmulatorLaunch.
int hpmoe_emulator_run_rank(void* launch, const HpmoePeers* peers, HpmoeStatus* status, char* fault, int64_t fault_bytes);

}  // extern "C"

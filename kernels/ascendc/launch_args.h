// The arguments of a launch on one rank, and the status that the host reads afterwards.
#pragma once

#include "core/generated/structs.h"
#include "core/marks.h"

namespace hpmoe {

constexpr int32_t kCounterWords = 128;  // a counter has its own L2 line, because requests to one line are serialized
constexpr int32_t kStatusWords = 16;  // a core's status has its own line of a scalar unit's cache

// Counters of the prologue, before those of the events; all count up from launch to launch. Cores meet at kCounted once a
// launch, and once more for each further step of sorting. From kExchanged on there is one counter for each rank, which
// this rank's signals reach twice a launch: a rank that is ahead may signal the next launch before another has signalled
// this one. If a launch selects one of several plans, kChosen counts the launches that have.
enum PrologueCounter { kCounted, kSorted, kReady, kFailed, kChosen, kExchanged };

HPMOE_DEVICE constexpr int32_t num_prologue_counters(int32_t ep_size) { return kExchanged + ep_size; }

// Addresses in the global memory of the rank's device. buffers: the address of each of the image's buffers, then for each
// route the entries of this rank that an expert takes (capacity_of_expert of core/image.h), in 64-bit words. counters,
// tables and every buffer that another rank writes are in the symmetric heap. targets: the value that each event's
// counter has reached after the previous launch. Each of several plans has its own image and its own part of `buffers`;
// see plans.h.
struct LaunchArgs {
  uint64_t image, buffers, counters, targets, tables, status;
  int64_t timeout_us;
  int32_t rank, num_tokens, epoch, num_blocks;
};

// The position of a core that ended before its queue was done; a core that is done leaves the zeros of the host.
struct CoreStatus {
  Status status;
  int32_t next_task, plan, reserved[4];
};

static_assert(sizeof(LaunchArgs) == 72, "six addresses, a time and four words");
static_assert(sizeof(CoreStatus) == kStatusWords * 4, "a line of 64 bytes");

}  // namespace hpmoe

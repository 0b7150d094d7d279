// What the host hands to a launch of the kernel on one rank, and what it finds in the status block afterwards.
#pragma once

#include "core/generated/structs.h"
#include "core/marks.h"

namespace hpmoe {

constexpr int32_t kCounterWords = 128;  // a counter has a line of L2 to itself: requests to one come one after the other
constexpr int32_t kStatusWords = 16;    // a core's status has a line of a scalar unit's cache

// Counters before those of the events, that the prologue uses; all count up from launch to launch. Cores meet at
// kCounted once a launch, and once more for each further step that sorting takes. From kExchanged on there is one for each
// rank, which counts what that rank alone has told, twice a launch: one that is ahead may tell of the next launch before
// another has told of this one. Where a launch takes one of several plans, kChosen counts the launches that have.
enum PrologueCounter { kCounted, kSorted, kReady, kFailed, kChosen, kExchanged };

HPMOE_DEVICE constexpr int32_t num_prologue_counters(int32_t ep_size) { return kExchanged + ep_size; }

// Addresses in the global memory of the rank's device. buffers: where each of the image's buffers lies, then for each route
// how many entries of this rank an expert takes (capacity_of_expert of core/image.h), in words of 64 bits. counters and
// tables lie in the symmetric heap, and so does every buffer that another rank writes to. `targets` holds what each event's
// counter has reached after the launch before this. Of several plans each has its own image, and its part of `buffers`: see
// plans.h.
struct LaunchArgs {
  uint64_t image, buffers, counters, targets, tables, status;
  int64_t timeout_us;
  int32_t rank, num_tokens, epoch, num_blocks;
};

// A core that ends without its queue being done says where it stands; a core that is done leaves the zeros of the host.
struct CoreStatus {
  Status status;
  int32_t next_task, plan, reserved[4];
};

static_assert(sizeof(LaunchArgs) == 72, "six addresses, a time and four words");
static_assert(sizeof(CoreStatus) == kStatusWords * 4, "a line of 64 bytes");

}  // namespace hpmoe

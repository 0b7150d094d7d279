// The shared state of a rank: the first bytes of its heap, written by its owner and read by all processes of the machine.
// Zeros mean a rank that has not begun.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "core/abi.h"

namespace hpmoe {

constexpr int64_t kLine = 64;

// One barrier. Barriers are numbered from 1, equally on every rank.
struct Exchange {
  int64_t number;
  uint64_t key;  // equal on every rank in the same call
  int64_t payload, payload_bytes;  // offset in its heap
  char what[96];  // describes the call
};

using Failure = HpmoeFailure;

// Returns a status that names only a rank.
inline Status status_of(Code code, int32_t rank) { return {static_cast<int32_t>(code), rank, -1, -1, -1, -1, 0, 0}; }

struct alignas(kLine) Control {
  alignas(kLine) std::atomic<int64_t> told;  // the last meeting that this rank has come to
  alignas(kLine) std::atomic<int64_t> failures;  // number of its failed calls; every rank counts each failure once
  std::atomic<int64_t> failed_at[2];  // by parity of the failure, the meeting
  std::atomic<int64_t> ended;  // the last meeting whose launch it has ended
  std::atomic<int32_t> has_left;  // its program has ended
  std::atomic<int64_t> leaving;  // a meeting that it may leave, until it has failed in the meeting or goes on
  alignas(kLine) std::atomic<int64_t> goes_on;  // the last barrier it goes on from, unless a rank left first
  std::atomic<int64_t> answered;  // for a rank of another machine: the last barrier that it has confirmed
  alignas(kLine) std::atomic<int64_t> progress_ns;  // when its last task ended, CLOCK_MONOTONIC of the machine
  alignas(kLine) std::atomic<uint32_t> rung;  // number of rings of its bell
  std::atomic<uint32_t> sleepers;  // threads that wait for the bell
  std::atomic<uint32_t> news;  // number of additions that were reported to a launch of another library
  // By parity: a rank comes to a meeting only after all ranks have read those of the meeting before the last.
  alignas(kLine) Exchange exchanges[2];
  alignas(kLine) Failure reasons[2];  // of its failures, by parity
  char last_words[3 * kLine];  // written before has_left
};

static_assert(sizeof(Exchange) == 2 * kLine, "an exchange is two lines");
static_assert(sizeof(Failure) == 4 * kLine, "a failure is four lines");
static_assert(sizeof(Control) == 20 * kLine, "what a rank is asked about lies on lines of its own");
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "processes share them");

// Copies as much of a text as fits.
template <size_t Size>
void copy_text(const char* from, char (&to)[Size]) {
  std::strncpy(to, from, Size - 1);
  to[Size - 1] = 0;
}

}  // namespace hpmoe

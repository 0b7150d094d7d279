// What the processes of a machine know of each other: the first bytes of each rank's heap, written by their owner and read
// by all. Zeros are a rank that has not begun.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#include "core/abi.h"

namespace hpmoe {

constexpr int64_t kLine = 64;

// Barriers are numbered from 1, equally on every rank.
struct Exchange {
  int64_t number;
  uint64_t key;                    // equal on every rank in the same call
  int64_t payload, payload_bytes;  // where in its heap
  char what[96];                   // the call in words
};

using Failure = HpmoeFailure;

// Of a rank, and nothing more.
inline Status status_of(Code code, int32_t rank) { return {static_cast<int32_t>(code), rank, -1, -1, -1, -1, 0, 0}; }

struct alignas(kLine) Control {
  alignas(kLine) std::atomic<int64_t> told;      // the last meeting that this rank has come to
  alignas(kLine) std::atomic<int64_t> failures;  // how many of its calls have failed: each failure is one on every rank
  std::atomic<int64_t> failed_at[2];             // by parity of the failure, the meeting
  std::atomic<int64_t> ended;                    // the last one whose launch it has ended
  std::atomic<int32_t> has_left;                 // its program has ended
  std::atomic<int64_t> leaving;                  // a meeting, until it has failed in it or goes on from it
  alignas(kLine) std::atomic<int64_t> goes_on;  // the last barrier it goes on from, unless a rank left first
  std::atomic<int64_t> answered;  // of a rank of another machine: the last one of which it has said that
  alignas(kLine) std::atomic<int64_t> progress_ns;  // when a task of it last ended: CLOCK_MONOTONIC is one for the machine
  alignas(kLine) std::atomic<uint32_t> rung;  // times that its bell was
  std::atomic<uint32_t> sleepers;  // threads that wait for it
  std::atomic<uint32_t> news;  // times that a launch of another library was told of an addition
  // By parity: a rank comes to a meeting when all have read those of the one before the last.
  alignas(kLine) Exchange exchanges[2];
  alignas(kLine) Failure reasons[2];  // of its failures, by parity
  char last_words[3 * kLine];  // before has_left is set
};

static_assert(sizeof(Exchange) == 2 * kLine, "an exchange is two lines");
static_assert(sizeof(Failure) == 4 * kLine, "a failure is four lines");
static_assert(sizeof(Control) == 20 * kLine, "what a rank is asked about lies on lines of its own");
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "processes share them");

// As much of a text as there is room for.
template <size_t Size>
void copy_text(const char* from, char (&to)[Size]) {
  std::strncpy(to, from, Size - 1);
  to[Size - 1] = 0;
}

}  // namespace hpmoe

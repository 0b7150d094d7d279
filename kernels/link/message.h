// The format of messages between processes of different hosts: a header and a body. Rows and the signals that follow them
// are records of one message, in the order of the puts.
#pragma once

#include <cstdint>
#include <vector>

namespace hpmoe {

using Bytes = std::vector<char>;

constexpr int64_t kMostMessageBytes = 256 << 20, kLeastMessageBytes = 4096;

// BEAT: a heartbeat. PART: a part of a meeting's payload, except the last. TOLD: an Exchange and the last part. FAILED: a
// Failure. LEFT: last words. ROWS: records. LEAVING: asks if its meeting may be left; 0 withdraws the question. GOES_ON:
// the answer.
enum class MessageKind : int32_t { BEAT, PART, TOLD, FAILED, LEFT, ROWS, LEAVING, GOES_ON };

struct MessageHeader {
  uint64_t secret[2];  // of the link
  MessageKind kind;
  uint32_t num_taken;  // messages of the receiver that the sender has processed, without heartbeats
  int64_t number;  // of the meeting, or of the meeting that began the launch
  int64_t offset;  // of a part: in its payload; of FAILED: the failures so far; of GOES_ON: the last meeting
  int64_t ended;  // the last meeting whose launch the sender has ended
  int64_t idle_ns;  // since the sender last ended a task
};

// A PUT is followed by `amount` rows of a buffer, from `first_row` on; if first_row is negative, int32 row indices
// precede the rows. An ADD adds `amount` to an event's counter. Bodies are padded to kWord.
enum class RecordKind : int32_t { PUT, ADD };

struct RecordHeader {
  RecordKind kind;
  int32_t place;  // buffer or event
  int32_t first_byte, row_bytes;
  int64_t amount, first_row;
};

constexpr int64_t kWord = 8;
constexpr int64_t in_words(int64_t bytes) { return (bytes + kWord - 1) / kWord * kWord; }

static_assert(sizeof(MessageHeader) == 56 && sizeof(RecordHeader) == 32, "hosts agree on what lies where");

}  // namespace hpmoe

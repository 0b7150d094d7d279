// What processes of different hosts send each other: messages of a header and a body. Rows and the signals that follow them
// are records of one message, in the order in which they were put.
#pragma once

#include <cstdint>
#include <vector>

namespace hpmoe {

using Bytes = std::vector<char>;

constexpr int64_t kMostMessageBytes = 256 << 20, kLeastMessageBytes = 4096;

// BEAT: nothing but a sign of life. PART: of the payload of a meeting, all but the last one. TOLD: a Notice, and the last
// part. FAILED: a Failure. LEFT: last words. ROWS: records.
// LEAVING asks whether its number may be left, and 0 takes that back; GOES_ON answers.
enum class MessageKind : int32_t { BEAT, PART, TOLD, FAILED, LEFT, ROWS, LEAVING, GOES_ON };

struct MessageHeader {
  uint64_t secret[2];  // of the link
  MessageKind kind;
  uint32_t num_taken;  // messages of the receiver that the sender has processed, signs of life apart
  int64_t number;   // of the meeting, or of that which began the launch
  int64_t offset;  // of a part in its payload; of a failure, how many there were with it; of GOES_ON, the last meeting so
  int64_t ended;  // the last meeting whose launch the sender has ended
  int64_t idle_ns;  // since it last ended a task
};

// Rows of a buffer follow a PUT: `amount` of them, these bytes of each. From `first_row` on, or where that is negative, at
// int32 indices that stand before them. An ADD adds `amount` to an event's counter. What follows is filled up to kWord.
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

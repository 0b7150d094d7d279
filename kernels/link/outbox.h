// Messages that wait to be sent to a rank of another host. Records that are put while a message waits join that message.
#pragma once

#include <deque>
#include <mutex>
#include <vector>

#include "core/abi.h"
#include "link/message.h"

namespace hpmoe {

// Counts the messages that the proxy has taken, except signs of life.
using Traffic = HpmoeTraffic;

// One row to send: its number on the destination and its address here.
struct SentRow {
  int64_t to;
  const char* from;
};

// Any thread puts; the proxy's thread takes. A message has at most `message_bytes` bytes.
class Outbox {
 public:
  Outbox(const uint64_t (&secret)[2], int64_t message_bytes);

  // Starts records of launch `number`.
  void begin_launch(int64_t number);
  void put(int32_t buffer, int64_t first_byte, int64_t row_bytes, const std::vector<SentRow>& rows);
  void add(int32_t event, int64_t amount);

  void post(MessageKind kind, int64_t number, int64_t offset, const void* body, int64_t bytes);
  // Sends the payload of a meeting, in parts if needed, then its Exchange.
  void tell(int64_t number, const void* exchange, int64_t exchange_bytes, const char* payload, int64_t bytes);

  // Takes the next message; returns false if there is none.
  bool take(Bytes& message);
  // Returns the memory of a sent message for reuse.
  void give_back(Bytes&& message);

  // Notes the number of messages that the other rank has processed, without heartbeats.
  void note_arrived(uint32_t num_messages);
  // Returns true if the other rank has processed every record that was put.
  bool has_arrived() const;
  Traffic traffic() const;

 private:
  struct Waiting {
    Bytes message;
    int64_t rows, row_bytes;
  };

  Bytes make(MessageKind kind, int64_t number, int64_t offset);
  Waiting& start(MessageKind kind, int64_t number, int64_t offset);
  Waiting& with_capacity(int64_t bytes);
  void put_some(int32_t buffer, int64_t first_byte, int64_t row_bytes, const std::vector<SentRow>& rows);

  const uint64_t secret_[2];
  const int64_t message_bytes_;
  mutable std::mutex mutex_;
  std::deque<Waiting> waiting_;
  std::vector<Bytes> spare_;
  bool is_open_ = false;  // the last message accepts more records
  uint32_t num_arrived_ = 0;
  int64_t launch_ = 0;
  Traffic traffic_{};
};

}  // namespace hpmoe

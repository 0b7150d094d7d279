// A rank of another host as this process knows it: its last messages, the outbox for it, and its end.
#pragma once

#include <atomic>
#include <cstdint>

#include "link/control.h"
#include "link/landing.h"
#include "link/outbox.h"

namespace hpmoe {

class Distant {
 public:
  // `mine`: this process's rank, whose bell rings for every message. `landing`: the memory that messages may write to.
  Distant(int32_t rank, const uint64_t (&secret)[2], int64_t message_bytes, Control& mine, Landing& landing);

  int32_t rank() const { return rank_; }
  // The state that the rank would have in its heap; the proxy writes it in the order of the rank's own steps.
  Control& control() { return control_; }
  // The rank's payload of a meeting, valid until the meeting after the next.
  const char* told(int64_t number) const { return payloads_[number % 2].data(); }
  Outbox& outbox() { return outbox_; }
  // Number of messages of the rank that were processed here, without heartbeats. Called by the proxy.
  uint32_t num_taken() const { return num_taken_; }

  // When any message of the rank arrived last.
  int64_t heard_ns() const { return heard_ns_.load(std::memory_order_relaxed); }
  void note_heard(int64_t now) { heard_ns_.store(now, std::memory_order_relaxed); }
  // Returns true if no message will arrive any more; the failure says why.
  bool is_gone() const { return is_gone_.load(std::memory_order_acquire); }
  const Failure& why() const { return why_; }

  // Called by the proxy: processes a message. Returns NULL, or the fault of the message; then nothing was written.
  const char* take(const char* message, int64_t bytes);
  // Called by the proxy: the rank is gone.
  void end(Code code, int64_t value, const char* text);

 private:
  const char* take_part(const MessageHeader& header, const char* body, int64_t bytes);
  const char* take_exchange(const MessageHeader& header, const char* body, int64_t bytes);
  const char* take_failure(const MessageHeader& header, const char* body, int64_t bytes);
  const char* take_leaving(const MessageHeader& header, int64_t bytes);
  const char* take_answer(const MessageHeader& header, int64_t bytes);
  bool can_be_at(int64_t number) const;

  const int32_t rank_;
  const uint64_t secret_[2];
  Control& mine_;
  Landing& landing_;
  Control control_{};
  Bytes payloads_[2];
  int64_t told_ = 0;  // the meeting whose parts arrive
  uint32_t num_taken_ = 0;
  Outbox outbox_;
  std::atomic<int64_t> heard_ns_{0};
  Failure why_{};
  std::atomic<bool> is_gone_{false};
};

}  // namespace hpmoe

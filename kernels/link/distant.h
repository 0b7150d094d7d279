// A rank of another host, as this process knows it: what it has said last, what is on its way to it, and whether it is gone.
#pragma once

#include <atomic>
#include <cstdint>

#include "link/control.h"
#include "link/landing.h"
#include "link/outbox.h"

namespace hpmoe {

class Distant {
 public:
  // `mine`: of this process's own rank, which is rung for every message; `landing`: where its launches are reached.
  Distant(int32_t rank, const uint64_t (&secret)[2], int64_t message_bytes, Control& mine, Landing& landing);

  int32_t rank() const { return rank_; }
  // As if it lay in that rank's heap: written by the proxy in the order in which that rank does things.
  Control& control() { return control_; }
  // What it told in a meeting, until the one after the next.
  const char* told(int64_t number) const { return payloads_[number % 2].data(); }
  Outbox& outbox() { return outbox_; }
  // Messages of that rank that were processed here, signs of life apart. By the proxy.
  uint32_t num_taken() const { return num_taken_; }

  // When anything was heard of it last.
  int64_t heard_ns() const { return heard_ns_.load(std::memory_order_relaxed); }
  void note_heard(int64_t now) { heard_ns_.store(now, std::memory_order_relaxed); }
  // Whether nothing comes from it any more, and why.
  bool is_gone() const { return is_gone_.load(std::memory_order_acquire); }
  const Failure& why() const { return why_; }

  // By the proxy: a message that came; NULL, or what is wrong with it, and then nothing was written.
  const char* take(const char* message, int64_t bytes);
  // By the proxy: nothing comes from now on.
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
  int64_t told_ = 0;  // the meeting that parts come of
  uint32_t num_taken_ = 0;
  Outbox outbox_;
  std::atomic<int64_t> heard_ns_{0};
  Failure why_{};
  std::atomic<bool> is_gone_{false};
};

}  // namespace hpmoe

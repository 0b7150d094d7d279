#include "link/distant.h"

#include <algorithm>
#include <cstring>

#include "link/bell.h"
#include "link/watchdog.h"

namespace hpmoe {

Distant::Distant(int32_t rank, const uint64_t (&secret)[2], int64_t message_bytes, Control& mine, Landing& landing)
    : rank_(rank), secret_{secret[0], secret[1]}, mine_(mine), landing_(landing), outbox_(secret, message_bytes) {}

const char* Distant::take(const char* message, int64_t bytes) {
  MessageHeader header;
  if (bytes < int64_t{sizeof header}) return "a message is shorter than its header";
  std::memcpy(&header, message, sizeof header);
  if (std::memcmp(header.secret, secret_, sizeof secret_) != 0) return "a message is not of this run";
  const char* const body = message + sizeof header;
  const int64_t length = bytes - int64_t{sizeof header};
  const char* fault = nullptr;
  switch (header.kind) {
    case MessageKind::BEAT: fault = length == 0 ? nullptr : "a sign of life has a body"; break;
    case MessageKind::PART: fault = take_part(header, body, length); break;
    case MessageKind::TOLD: fault = take_exchange(header, body, length); break;
    case MessageKind::FAILED: fault = take_failure(header, body, length); break;
    case MessageKind::LEAVING: fault = take_leaving(header, length); break;
    case MessageKind::GOES_ON: fault = take_answer(header, length); break;
    case MessageKind::ROWS: fault = landing_.take(header.number, body, length); break;
    case MessageKind::LEFT:
      if (length != sizeof control_.last_words) return "last words are of another length";
      std::memcpy(control_.last_words, body, length);
      control_.last_words[length - 1] = 0;
      control_.has_left.store(1, std::memory_order_seq_cst);
      outbox_.post(MessageKind::BEAT, 0, 0, nullptr, 0);  // a rank that leaves waits for this acknowledgement
      break;
    default: return "a message is of no kind";
  }
  if (fault) return fault;
  num_taken_ += header.kind != MessageKind::BEAT;
  outbox_.note_arrived(header.num_taken);
  control_.progress_ns.store(now_ns() - std::max<int64_t>(header.idle_ns, 0), std::memory_order_relaxed);
  control_.ended.store(header.ended, std::memory_order_release);
  ring(mine_);
  return nullptr;
}

void Distant::end(Code code, int64_t value, const char* text) {
  if (is_gone()) return;
  why_ = {status_of(code, rank_), rank_, {}};
  why_.status.value = value;
  copy_text(text, why_.text);
  is_gone_.store(true, std::memory_order_release);
  ring(mine_);
}

// No rank is more than one meeting ahead, so the exchange of that parity is not being read here. After a failure no
// exchange is read, and other ranks may continue with any number.
bool Distant::can_be_at(int64_t number) const {
  const int64_t told = mine_.told.load(std::memory_order_seq_cst);
  const bool has_failed = std::max(mine_.failed_at[0].load(), mine_.failed_at[1].load()) >= told;
  return number > control_.told.load(std::memory_order_relaxed) && (has_failed || number <= told + 1);
}

const char* Distant::take_part(const MessageHeader& header, const char* body, int64_t bytes) {
  if (!can_be_at(header.number)) return "a meeting is out of turn";
  Bytes& payload = payloads_[header.number % 2];
  if (told_ != header.number) payload.clear();
  told_ = header.number;
  if (header.offset != int64_t(payload.size())) return "a part of a payload is out of turn";
  payload.insert(payload.end(), body, body + bytes);
  return nullptr;
}

const char* Distant::take_exchange(const MessageHeader& header, const char* body, int64_t bytes) {
  Exchange exchange;
  if (bytes < int64_t{sizeof exchange}) return "an exchange is cut off";
  std::memcpy(&exchange, body, sizeof exchange);
  if (exchange.number != header.number || exchange.payload_bytes != header.offset + bytes - int64_t{sizeof exchange})
    return "an exchange has another payload";
  if (const char* const fault = take_part(header, body + sizeof exchange, bytes - int64_t{sizeof exchange})) return fault;
  exchange.what[sizeof exchange.what - 1] = 0;
  control_.exchanges[header.number % 2] = exchange;
  control_.told.store(header.number, std::memory_order_seq_cst);
  return nullptr;
}

// Keeps a reason that this rank has not read yet, as the other rank keeps its own.
const char* Distant::take_failure(const MessageHeader& header, const char* body, int64_t bytes) {
  Failure failure;
  if (bytes != sizeof failure) return "a failure is of another length";
  std::memcpy(&failure, body, sizeof failure);
  const int64_t count = header.offset;
  if (count != control_.failures.load(std::memory_order_relaxed) + 1) return "a failure is out of turn";
  failure.text[sizeof failure.text - 1] = 0;
  if (mine_.failures.load(std::memory_order_acquire) >= count - 2) control_.reasons[count % 2] = failure;
  control_.failed_at[count % 2].store(header.number, std::memory_order_release);
  control_.failures.store(count, std::memory_order_seq_cst);
  return nullptr;
}

// Answers after the question is visible here: a rank that goes on later sees it, and one that went on before is reported.
const char* Distant::take_leaving(const MessageHeader& header, int64_t bytes) {
  if (bytes != 0 || header.number < 0 || header.number > control_.told.load(std::memory_order_relaxed))
    return "a meeting is left out of turn";
  control_.leaving.store(header.number, std::memory_order_seq_cst);
  if (header.number > 0)
    outbox_.post(MessageKind::GOES_ON, header.number, mine_.goes_on.load(std::memory_order_seq_cst), nullptr, 0);
  return nullptr;
}

const char* Distant::take_answer(const MessageHeader& header, int64_t bytes) {
  if (bytes != 0) return "an answer has a body";
  if (header.number != mine_.leaving.load(std::memory_order_seq_cst)) return nullptr;  // it has failed for another reason
  control_.goes_on.store(header.offset, std::memory_order_seq_cst);
  control_.answered.store(header.number, std::memory_order_seq_cst);
  return nullptr;
}

}  // namespace hpmoe

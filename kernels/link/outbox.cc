#include "link/outbox.h"

#include <algorithm>
#include <cstring>

namespace hpmoe {
namespace {

constexpr size_t kMostFree = 4;

void append(Bytes& message, const void* from, int64_t bytes) {
  const auto* const first = static_cast<const char*>(from);
  message.insert(message.end(), first, first + bytes);
}

bool is_run(const std::vector<SentRow>& rows) {
  for (size_t i = 1; i < rows.size(); ++i)
    if (rows[i].to != rows[0].to + int64_t(i)) return false;
  return true;
}

}  // namespace

Outbox::Outbox(const uint64_t (&secret)[2], int64_t message_bytes)
    : secret_{secret[0], secret[1]}, message_bytes_(message_bytes) {}

void Outbox::begin_launch(int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  launch_ = number;
  is_open_ = false;
}

// Splits rows that are too long for a message by columns.
void Outbox::put(int32_t buffer, int64_t first_byte, int64_t row_bytes, const std::vector<SentRow>& rows) {
  constexpr int64_t kIndex = sizeof(int32_t);
  const int64_t capacity = message_bytes_ - int64_t{sizeof(MessageHeader) + sizeof(RecordHeader)} - 2 * kWord;
  const int64_t most_bytes = std::min(row_bytes, capacity - kIndex), most_rows = capacity / (most_bytes + kIndex);
  const auto count = static_cast<int64_t>(rows.size());
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<SentRow> some;
  for (int64_t first = 0; first < count; first += most_rows) {
    some.assign(rows.begin() + first, rows.begin() + std::min(count, first + most_rows));
    for (int64_t byte = 0; byte < row_bytes; byte += most_bytes) {
      put_some(buffer, first_byte + byte, std::min(most_bytes, row_bytes - byte), some);
      for (SentRow& row : some) row.from += most_bytes;
      if (byte == 0) waiting_.back().rows += int64_t(some.size());
    }
  }
}

void Outbox::put_some(int32_t buffer, int64_t first_byte, int64_t row_bytes, const std::vector<SentRow>& rows) {
  const bool is_one_run = is_run(rows);
  const auto num_rows = static_cast<int64_t>(rows.size());
  const int64_t indices = is_one_run ? 0 : in_words(num_rows * int64_t{sizeof(int32_t)}), bytes = num_rows * row_bytes;
  Waiting& waiting = with_capacity(int64_t{sizeof(RecordHeader)} + indices + in_words(bytes));
  waiting.row_bytes += bytes;
  Bytes& message = waiting.message;
  const RecordHeader record = {RecordKind::PUT,    buffer,   int32_t(first_byte),
                               int32_t(row_bytes), num_rows, is_one_run ? rows[0].to : -1};
  append(message, &record, sizeof record);
  if (!is_one_run) {
    for (const SentRow& row : rows) {
      const auto to = static_cast<int32_t>(row.to);
      append(message, &to, sizeof to);
    }
    message.resize(in_words(int64_t(message.size())));
  }
  for (const SentRow& row : rows) append(message, row.from, row_bytes);
  message.resize(in_words(int64_t(message.size())));
}

void Outbox::add(int32_t event, int64_t amount) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const RecordHeader record = {RecordKind::ADD, event, 0, 0, amount, 0};
  append(with_capacity(sizeof record).message, &record, sizeof record);
}

void Outbox::post(MessageKind kind, int64_t number, int64_t offset, const void* body, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  append(start(kind, number, offset).message, body, bytes);
}

void Outbox::tell(int64_t number, const void* exchange, int64_t exchange_bytes, const char* payload, int64_t bytes) {
  const int64_t capacity = message_bytes_ - int64_t{sizeof(MessageHeader)} - exchange_bytes;
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t offset = 0;
  for (; bytes - offset > capacity; offset += capacity)
    append(start(MessageKind::PART, number, offset).message, payload + offset, capacity);
  Bytes& last = start(MessageKind::TOLD, number, offset).message;
  append(last, exchange, exchange_bytes);
  append(last, payload + offset, bytes - offset);
}

Bytes Outbox::make(MessageKind kind, int64_t number, int64_t offset) {
  Bytes message;
  if (!spare_.empty()) {
    message = std::move(spare_.back());
    spare_.pop_back();
  }
  message.clear();
  const MessageHeader header = {{secret_[0], secret_[1]}, kind, 0, number, offset, 0, 0};
  append(message, &header, sizeof header);
  return message;
}

// Appends an empty message to the queue.
Outbox::Waiting& Outbox::start(MessageKind kind, int64_t number, int64_t offset) {
  waiting_.push_back({make(kind, number, offset), 0, 0});
  is_open_ = kind == MessageKind::ROWS;
  return waiting_.back();
}

// Returns the message that a record of a number of bytes is appended to.
Outbox::Waiting& Outbox::with_capacity(int64_t bytes) {
  const bool has_capacity = is_open_ && !waiting_.empty() &&
                            int64_t(waiting_.back().message.size()) + bytes <= message_bytes_;
  return has_capacity ? waiting_.back() : start(MessageKind::ROWS, launch_, 0);
}

bool Outbox::take(Bytes& message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (waiting_.empty()) return false;
  message = std::move(waiting_.front().message);
  traffic_.rows += waiting_.front().rows;
  traffic_.row_bytes += waiting_.front().row_bytes;
  waiting_.pop_front();
  is_open_ = is_open_ && !waiting_.empty();
  MessageHeader header;
  std::memcpy(&header, message.data(), sizeof header);
  if (header.kind == MessageKind::BEAT) return true;
  ++traffic_.messages;
  traffic_.bytes += int64_t(message.size());
  traffic_.row_messages += header.kind == MessageKind::ROWS;
  return true;
}

void Outbox::give_back(Bytes&& message) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (spare_.size() < kMostFree) spare_.push_back(std::move(message));
}

void Outbox::note_arrived(uint32_t num_messages) {
  const std::lock_guard<std::mutex> lock(mutex_);
  num_arrived_ = num_messages;
}

bool Outbox::has_arrived() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return waiting_.empty() && num_arrived_ == static_cast<uint32_t>(traffic_.messages);
}

Traffic Outbox::traffic() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return traffic_;
}

}  // namespace hpmoe

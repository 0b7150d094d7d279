#include "link/landing.h"

#include <cstring>
#include <utility>

namespace hpmoe {
namespace {

int64_t index_bytes(const RecordHeader& record) {
  return record.first_row < 0 ? in_words(record.amount * int64_t{sizeof(int32_t)}) : 0;
}

// Bytes that follow a record's header.
int64_t body_bytes(const RecordHeader& record) {
  return record.kind == RecordKind::PUT ? index_bytes(record) + in_words(record.amount * record.row_bytes) : 0;
}

RecordHeader record_at(const char* at) {
  RecordHeader record;
  std::memcpy(&record, at, sizeof record);
  return record;
}

int64_t row_of(const RecordHeader& record, const char* body, int64_t i) {
  if (record.first_row >= 0) return record.first_row + i;
  int32_t row;
  std::memcpy(&row, body + i * int64_t{sizeof row}, sizeof row);
  return row;
}

}  // namespace

void Landing::open(int64_t number, std::vector<LandingRows> buffers, int64_t* counters, int64_t step, int64_t num_events) {
  const std::lock_guard<std::mutex> lock(mutex_);
  number_ = number;
  buffers_ = std::move(buffers);
  counters_ = counters;
  step_ = step;
  num_events_ = num_events;
}

void Landing::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  number_ = 0;
}

const char* Landing::take(int64_t number, const char* records, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (number_ == 0 || number != number_) return nullptr;
  if (const char* const fault = find_fault(records, bytes)) return fault;
  for (const char* const end = records + bytes; records < end;) {
    const RecordHeader record = record_at(records);
    const char* const body = records + sizeof record;
    records = body + body_bytes(record);
    if (record.kind == RecordKind::ADD) {
      __atomic_fetch_add(counters_ + record.place * step_, record.amount, __ATOMIC_SEQ_CST);
      continue;
    }
    const LandingRows& to = buffers_[record.place];
    const char* row = body + index_bytes(record);
    for (int64_t i = 0; i < record.amount; ++i, row += record.row_bytes)
      std::memcpy(to.base + row_of(record, body, i) * to.stride + record.first_byte, row, record.row_bytes);
  }
  return nullptr;
}

const char* Landing::find_fault(const char* records, int64_t bytes) const {
  while (bytes > 0) {
    if (bytes < int64_t{sizeof(RecordHeader)}) return "a record is cut off";
    const RecordHeader record = record_at(records);
    const char* const body = records + sizeof record;
    const int64_t capacity = bytes - int64_t{sizeof record};
    if (const char* const fault = find_fault(record, body, capacity)) return fault;
    records = body + body_bytes(record);
    bytes = capacity - body_bytes(record);
  }
  return nullptr;
}

const char* Landing::find_fault(const RecordHeader& record, const char* body, int64_t capacity) const {
  if (record.kind == RecordKind::ADD) {
    if (record.place < 0 || record.place >= num_events_) return "a signal names no event";
    return record.amount > 0 ? nullptr : "a signal adds nothing";
  }
  if (record.kind != RecordKind::PUT) return "a record is of no kind";
  if (record.place < 0 || record.place >= int64_t(buffers_.size())) return "rows name no buffer";
  const LandingRows& to = buffers_[record.place];
  const bool has_columns = record.first_byte >= 0 && record.row_bytes > 0 &&
                           int64_t{record.first_byte} + record.row_bytes <= to.stride;
  if (!has_columns) return "rows are longer than those of their buffer";
  if (record.amount < 0 || record.amount > capacity / record.row_bytes || body_bytes(record) > capacity)
    return "rows are cut off";
  const bool is_run = record.first_row >= 0;
  if (is_run && record.amount > to.rows - record.first_row) return "a row lies outside of its buffer";
  for (int64_t i = 0; i < record.amount && !is_run; ++i) {
    const int64_t row = row_of(record, body, i);
    if (row < 0 || row >= to.rows) return "a row lies outside of its buffer";
  }
  return nullptr;
}

}  // namespace hpmoe

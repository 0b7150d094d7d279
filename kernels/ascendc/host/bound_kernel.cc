#include "bound_kernel.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "core/image.h"
#include "core/numbers.h"
#include "core/stuck.h"

namespace hpmoe {
namespace {

constexpr uint64_t kLine = 64, kCounterBytes = kCounterWords * sizeof(int32_t);

uint64_t in_whole_lines(uint64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

std::vector<uint64_t> in_words(const std::string& bytes) {
  std::vector<uint64_t> words((bytes.size() + 7) / 8);
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

// Summarizes the status of all cores: the wait that lost its signal, else the first failure, else the failure of another
// rank.
Failure summary_of(const std::vector<PlanImage>& plans, const CoreStatus* left, int32_t rank) {
  std::vector<Stand> stands;
  CoreStatus first{}, aborted{};
  for (int32_t q = 0; q < plans.front().image.header->num_queues; ++q) {
    const Status& status = left[q].status;
    if (status.code == 0) continue;
    const bool is_cause = status.code != static_cast<int32_t>(Code::ABORTED_PEER);
    CoreStatus& kept = is_cause ? first : aborted;
    if (kept.status.code == 0) kept = left[q];
    stands.push_back({rank, q, std::max(left[q].next_task, plans[left[q].plan].image.queues[q]), status});
  }
  if (first.status.code == static_cast<int32_t>(Code::TIMEOUT))
    return {find_lost_signal(plans[first.plan].image, stands, first.status), first.plan, ""};
  const CoreStatus& told = first.status.code != 0 ? first : aborted;
  return {told.status, told.plan, ""};
}

}  // namespace

BoundKernel::BoundKernel(std::shared_ptr<Device> device, const std::string& image, int32_t rank, double timeout_s,
                         Layout layout)
    : device_(std::move(device)),
      words_(in_words(image)),
      plans_(plans_of(words_.data())),
      num_words_(end_of(plans_).first_word),
      num_events_(most_events(plans_)),
      rank_(rank),
      timeout_us_(in_microseconds(timeout_s)),
      layout_(std::move(layout)) {
  const Header& header = *plans_.front().image.header;
  check_cores(static_cast<uint32_t>(header.num_queues / 3));
  for (const Place& place : layout_.places) spans_.push_back({static_cast<uint64_t>(place.bytes), place.tensor < 0});
  counters_offset_ = in_whole_lines(layout_.heap_bytes);
  tables_offset_ = counters_offset_ + static_cast<uint64_t>(layout_.num_counters) * kCounterBytes;
  const uint64_t table_bytes = in_whole_lines(layout_.table_words * 4);
  symmetric_ = static_cast<uint8_t*>(device_->allocate_symmetric(tables_offset_ + 2 * table_bytes));
  image_ = static_cast<uint8_t*>(device_->allocate(image.size()));
  targets_ = static_cast<uint8_t*>(device_->allocate(in_whole_lines(num_events_ * 4 + 4)));
  device_->fill(image_, words_.data(), image.size());
  status_offset_ = in_whole_lines(sizeof(LaunchArgs)) + in_whole_lines(sizeof(uint64_t) * num_words_);
  record_bytes_ = status_offset_ + sizeof(CoreStatus) * header.num_queues;
  for (Record& record : ring_) {
    record.host = static_cast<uint8_t*>(device_->allocate_host(record_bytes_));
    record.device = static_cast<uint8_t*>(device_->allocate(record_bytes_));
    record.mark = device_->new_mark();
  }
  device_->meet();  // no rank signals before all counters are cleared
}

// The blocks of a kernel wait for each other, so all must run at once.
void BoundKernel::check_cores(uint32_t num_blocks) const {
  const uint32_t num_cores = device_->num_cores();
  if (num_blocks <= num_cores) return;
  const auto aic = std::to_string(num_cores), aiv = std::to_string(2 * num_cores);
  throw std::runtime_error("the kernel has " + std::to_string(num_blocks) + " blocks, which wait for each other, and the " +
                           "device has " + aic +
                           " AIC cores: plan for it, with assign_queues(machine=hpmoe.machines.ascend_a3." +
                           "replace(num_aic=" + aic + ", num_aiv=" + aiv + "))");
}

BoundKernel::~BoundKernel() {
  try {
    device_->synchronize();
  } catch (const std::exception&) {
    // If the device is lost, its memory is lost with it.
  }
  for (Record& record : ring_) {
    device_->free_mark(record.mark);
    device_->free_host(record.host);
    device_->free(record.device);
  }
  device_->free(targets_);
  device_->free(image_);
}

void BoundKernel::launch(const std::vector<void*>& tensors, int32_t num_tokens, void* stream,
                         std::shared_ptr<void> owner) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    enqueue(tensors, num_tokens, stream, std::move(owner));
  } catch (const std::exception& error) {
    note({{}, 0, error.what()});
  }
}

void BoundKernel::enqueue(const std::vector<void*>& tensors, int32_t num_tokens, void* stream, std::shared_ptr<void> owner) {
  if (is_told_) reset();
  Record& record = ring_[next_];
  if (record.is_under_way) {
    device_->wait_for(record.mark);
    collect(&record);
  }
  next_ = (next_ + 1) % kRing;
  epoch_ = wrapping_sum(epoch_, 1);
  prepare(record, tensors, num_tokens);
  device_->copy_in(record.device, record.host, record_bytes_, stream);
  device_->launch(static_cast<uint32_t>(plans_.front().image.header->num_queues / 3), stream, record.device, spans_);
  for (const CopyOut& copy : layout_.copies) {
    device_->copy(tensors.at(copy.tensor), symmetric_ + copy.offset, static_cast<size_t>(copy.bytes), stream);
  }
  device_->copy_out(record.host + status_offset_, record.device + status_offset_, record_bytes_ - status_offset_, stream);
  device_->hold(std::move(owner), stream);
  device_->set(record.mark, stream);
  record.is_under_way = true;
}

// Fills a record: the arguments, the table of buffers and capacities, and a line for each core's status.
void BoundKernel::prepare(const Record& record, const std::vector<void*>& tensors, int32_t num_tokens) {
  const auto address = [](const void* pointer) { return reinterpret_cast<uint64_t>(pointer); };
  std::memset(record.host, 0, record_bytes_);
  const uint64_t table = in_whole_lines(sizeof(LaunchArgs));
  auto* const buffers = reinterpret_cast<uint64_t*>(record.host + table);
  for (const PlanImage& plan : plans_) {
    const Header& header = *plan.image.header;
    for (int32_t b = 0; b < header.num_buffers; ++b) {
      const Place& place = layout_.places.at(plan.place.first_word + b);
      void* const base = place.tensor < 0 ? symmetric_ : tensors.at(place.tensor);
      buffers[plan.place.first_word + b] = address(base) + static_cast<uint64_t>(place.offset);
    }
    for (int32_t r = 0; r < header.num_routes; ++r)
      buffers[plan.place.first_word + header.num_buffers + r] = static_cast<uint64_t>(
          capacity_of_expert(plan.image.routes[r], num_tokens));
  }
  const uint64_t tables = tables_offset_ + (epoch_ & 1) * in_whole_lines(layout_.table_words * 4);
  const LaunchArgs args{address(image_),
                        address(record.device + table),
                        address(symmetric_ + counters_offset_),
                        address(targets_),
                        address(symmetric_ + tables),
                        address(record.device + status_offset_),
                        timeout_us_,
                        rank_,
                        num_tokens,
                        epoch_,
                        plans_.front().image.header->num_queues / 3};
  std::memcpy(record.host, &args, sizeof(args));
}

void BoundKernel::collect(Record* record) {
  record->is_under_way = false;
  const Failure found = summary_of(plans_, reinterpret_cast<const CoreStatus*>(record->host + status_offset_), rank_);
  if (found.status.code != 0) note(found);
}

void BoundKernel::note(const Failure& failure) {
  if (has_failed_) return;
  has_failed_ = true;
  failure_ = failure;
}

void BoundKernel::collect_all(bool wait) {
  try {
    for (int i = 0; i < kRing; ++i) {
      Record& record = ring_[(next_ + i) % kRing];  // oldest first
      if (!record.is_under_way) continue;
      if (wait) device_->wait_for(record.mark);
      if (device_->has_passed(record.mark)) collect(&record);
    }
  } catch (const std::exception& error) {
    note({{}, 0, error.what()});
  }
}

bool BoundKernel::find_failure(bool wait, Failure* failure) {
  const std::lock_guard<std::mutex> lock(mutex_);
  collect_all(wait);
  if (!has_failed_ || is_told_) return false;
  is_told_ = true;
  *failure = failure_;
  return true;
}

bool BoundKernel::has_failure() {
  const std::lock_guard<std::mutex> lock(mutex_);
  collect_all(false);
  return has_failed_ && !is_told_;
}

void BoundKernel::reset() {
  device_->synchronize();
  for (Record& record : ring_) record.is_under_way = false;
  device_->meet();  // no rank adds to these counters any more
  const std::vector<uint8_t> zeros(std::max<uint64_t>(layout_.num_counters * kCounterBytes, num_events_ * 4 + 4));
  device_->fill(symmetric_ + counters_offset_, zeros.data(), layout_.num_counters * kCounterBytes);
  device_->fill(targets_, zeros.data(), num_events_ * 4);
  device_->meet();  // no rank adds to them yet
  epoch_ = 0;
  has_failed_ = is_told_ = false;
  failure_ = {};
}

}  // namespace hpmoe

// The kernel of one direction on one rank: its image and state on the device, and its asynchronous launches.
//
// A launch takes one of a ring of records for its arguments and its status; the host waits only if all records are in
// use. find_failure() returns failures.
#pragma once

#include <array>
#include <mutex>
#include <string>
#include <vector>

#include "device.h"
#include "launch_args.h"
#include "plan_images.h"

namespace hpmoe {

// The address of a buffer in a launch: an offset in the tensor with this index, or in the symmetric heap if the index is
// negative.
struct Place {
  int64_t tensor, offset, bytes;
};

// Bytes that are copied from the symmetric heap to a tensor after a launch.
struct CopyOut {
  int64_t offset, tensor, bytes;
};

struct Layout {
  std::vector<Place> places;  // of each plan's buffers, as in plans.h; empty for a route's capacity
  std::vector<CopyOut> copies;
  uint64_t heap_bytes;  // of the buffers in the symmetric heap
  int64_t num_counters, table_words;  // in units of 512 and 4 bytes
};

// The result of a launch: status, code of protocol.h and plan, or the error of a host that could not launch.
struct Failure {
  Status status;
  int32_t plan;
  std::string fault;
};

class BoundKernel {
 public:
  // All ranks bind together. Throws std::runtime_error if the device has too few cores for the kernel.
  BoundKernel(std::shared_ptr<Device> device, const std::string& image, int32_t rank, double timeout_s, Layout layout);
  ~BoundKernel();
  BoundKernel(const BoundKernel&) = delete;
  BoundKernel& operator=(const BoundKernel&) = delete;

  // Never throws: find_failure() reports a fault of the host like a fault of the kernel. After find_failure() has reported
  // a failure on every rank, all counters restart at zero.
  void launch(const std::vector<void*>& tensors, int32_t num_tokens, void* stream, std::shared_ptr<void> owner) noexcept;

  // Returns the first unreported failure of the launches that have ended, once. `wait`: of all launches so far.
  bool find_failure(bool wait, Failure* failure);

  // Returns true if find_failure() would report a failure.
  bool has_failure();

 private:
  static constexpr int kRing = 8;

  struct Record {
    uint8_t *host = nullptr, *device = nullptr;
    void* mark = nullptr;
    bool is_under_way = false;
  };

  void check_cores(uint32_t num_blocks) const;
  void prepare(const Record& record, const std::vector<void*>& tensors, int32_t num_tokens);
  void enqueue(const std::vector<void*>& tensors, int32_t num_tokens, void* stream, std::shared_ptr<void> owner);
  void collect(Record* record);
  void collect_all(bool wait);
  void reset();
  void note(const Failure& failure);
  const std::shared_ptr<Device> device_;
  const std::vector<uint64_t> words_;  // the image, aligned so that its header can be read in place
  const std::vector<PlanImage> plans_;
  const uint64_t num_words_, num_events_;  // of the table of buffers, and of the plan with the most events
  const int32_t rank_;
  const int64_t timeout_us_;
  const Layout layout_;
  std::vector<Span> spans_;
  uint64_t status_offset_ = 0, record_bytes_ = 0;
  uint8_t *symmetric_ = nullptr, *image_ = nullptr, *targets_ = nullptr;
  uint64_t counters_offset_ = 0, tables_offset_ = 0;
  std::array<Record, kRing> ring_;
  int32_t epoch_ = 0, next_ = 0;
  bool has_failed_ = false, is_told_ = false;
  Failure failure_{};
  std::mutex mutex_;
};

}  // namespace hpmoe

// The memory that rows and signals of other hosts may write to: only the arrays of this rank's current launch.
#pragma once

#include <mutex>
#include <vector>

#include "link/message.h"

namespace hpmoe {

// Rows of a buffer; empty if no rank puts into it.
struct LandingRows {
  char* base;
  int64_t stride, rows;
};

class Landing {
 public:
  // Accepts records of the launch that meeting `number` begins; counters are `step` words apart.
  void open(int64_t number, std::vector<LandingRows> buffers, int64_t* counters, int64_t step, int64_t num_events);
  // Refuses further records; returns when no thread writes any more.
  void close();

  // Writes the records of a ROWS message, or nothing if they belong to another launch. Returns NULL, or the fault of the
  // message; then nothing was written.
  const char* take(int64_t number, const char* records, int64_t bytes);

 private:
  const char* find_fault(const char* records, int64_t bytes) const;
  const char* find_fault(const RecordHeader& record, const char* body, int64_t capacity) const;

  std::mutex mutex_;
  int64_t number_ = 0;  // 0: no launch
  std::vector<LandingRows> buffers_;
  int64_t* counters_ = nullptr;
  int64_t step_ = 0, num_events_ = 0;
};

}  // namespace hpmoe

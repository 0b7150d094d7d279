// A launch of this rank that another library runs, and the link functions that the library calls.
#pragma once

#include <atomic>
#include <vector>

#include "core/abi.h"
#include "link/link.h"
#include "link/watchdog.h"

namespace hpmoe {

class DeviceLaunch {
 public:
  DeviceLaunch(Link& link, const Call& call, const InterruptWatch& watch)
      : link_(link), call_(call), watch_(watch), watchdog_(call.timeout_s, watch, has_failed_, &link) {}

  // Meets the other ranks, then runs this rank's kernel.
  Status run(const void* payload, int64_t bytes, HpmoeRunRank run_rank, void* of);

 private:
  Status run_rank(HpmoeRunRank run_rank, void* of);
  Status end(Status status, const char* fault);
  Code look(bool is_idle);
  uint32_t news() const { return link_.mine().news.load(std::memory_order_seq_cst); }

  Link& link_;
  const Call& call_;
  const InterruptWatch& watch_;
  const std::atomic<bool> has_failed_{false};
  Watchdog watchdog_;
  uint32_t heard_ = 0;
  std::vector<void*> heaps_;
  std::vector<const void*> told_;
};

}  // namespace hpmoe

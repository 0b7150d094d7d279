// The arrays and counters of all ranks, as the ranks of a launch reach them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/abi.h"
#include "core/image.h"
#include "core/routing.h"
#include "link/link.h"

namespace hpmoe {

// This class serves all ranks in this process; mapped_peers.h serves one rank among processes.
class Peers {
 public:
  Peers(const HpmoeRank* ranks, int32_t num_ranks) : Peers({ranks, ranks + num_ranks}, 0, num_ranks, 1, nullptr) {}
  virtual ~Peers() = default;
  Peers(const Peers&) = delete;

  int32_t size() const { return static_cast<int32_t>(ranks_.size()); }
  // The ranks that are served here are first() .. last() - 1.
  int32_t first() const { return first_; }
  int32_t last() const { return last_; }
  int32_t num_served() const { return last_ - first_; }
  // For ranks served elsewhere, after meet(): arrays that are put into, counters, tokens.
  const HpmoeRank* ranks() const { return ranks_.data(); }

  // Returns when every rank is in this launch and has sorted, and its arrays are known. Otherwise returns the error, with
  // its numbers in the status.
  virtual Code meet(std::vector<Routing>&, const InterruptWatch&, Status&) { return Code::OK; }

  // Ends the launch with this status; returns the status with what other processes know about it.
  virtual Status end(const Status& status) { return status; }

  // Adds to a counter. A wait that sees the value sees all writes that precede each addition.
  void add(int32_t rank, int64_t event, int64_t amount) const {
    if (Distant* const there = distant(rank)) return there->outbox().add(static_cast<int32_t>(event), amount);
    __atomic_fetch_add(ranks_[rank].counters + event * step_, amount, __ATOMIC_SEQ_CST);
    if (link_) link_->wake(rank);
  }
  // A rank of another machine, or NULL. Rows for it go to its outbox, before their signals.
  Distant* distant(int32_t rank) const { return link_ ? link_->distant(rank) : nullptr; }
  // Sends what a finished task has put and signalled.
  void send() const {
    if (link_) link_->send();
  }
  int64_t counted(int32_t rank, int64_t event) const {
    return __atomic_load_n(ranks_[rank].counters + event * step_, __ATOMIC_ACQUIRE) - ranks_[rank].bases[event];
  }
  // The current values of the counters become the start values of the launch.
  void begin_counting(int64_t num_events) const {
    for (int32_t rank = first_; rank < last_; ++rank)
      for (int64_t e = 0; e < num_events; ++e) ranks_[rank].bases[e] = ranks_[rank].counters[e * step_];
  }

  // The link to other processes; NULL if all ranks are in this process.
  Link* link() const { return link_; }

 protected:
  Peers(std::vector<HpmoeRank> ranks, int32_t first, int32_t last, int64_t step, Link* link)
      : ranks_(std::move(ranks)), first_(first), last_(last), step_(step), link_(link) {}

  std::vector<HpmoeRank> ranks_;

 private:
  const int32_t first_, last_;
  const int64_t step_;  // words from one counter to the next
  Link* const link_;
};

}  // namespace hpmoe
